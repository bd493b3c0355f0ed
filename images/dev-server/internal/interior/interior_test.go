package interior

import (
	"encoding/json"
	"testing"
)

func TestAWishThatDoesNotSayWhoMayLogInIsNone(t *testing.T) {
	for _, text := range []string{`{}`, `null`, `{"jupyter": null}`, `{"authorized_keys": null}`, `[]`} {
		var wish Wish
		if err := json.Unmarshal([]byte(text), &wish); err == nil {
			t.Errorf("%s was taken for %v", text, wish)
		}
	}
}

func TestAWishSaysEverything(t *testing.T) {
	for text, keys := range map[string]string{`{"authorized_keys": ""}`: "", `{"authorized_keys": "a\n", "jupyter": null}`: "a\n"} {
		var wish Wish
		if err := json.Unmarshal([]byte(text), &wish); err != nil || wish.AuthorizedKeys != keys || wish.Jupyter != nil {
			t.Error(wish, err)
		}
	}
}
