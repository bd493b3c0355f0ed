package addons

import (
	"encoding/json"
	"testing"
)

func TestAWishThatDoesNotSayWhoMayLogInIsNone(t *testing.T) {
	for _, text := range []string{`{}`, `null`, `{"jupyter": null}`, `{"authorized_keys": null}`, `[]`} {
		var options Options
		if err := json.Unmarshal([]byte(text), &options); err == nil {
			t.Errorf("%s was taken for %v", text, options)
		}
	}
}

func TestAWishSaysEverything(t *testing.T) {
	for text, keys := range map[string]string{`{"authorized_keys": ""}`: "", `{"authorized_keys": "a\n", "jupyter": null}`: "a\n"} {
		var options Options
		if err := json.Unmarshal([]byte(text), &options); err != nil || options.AuthorizedKeys != keys || options.Jupyter != nil {
			t.Error(options, err)
		}
	}
}
