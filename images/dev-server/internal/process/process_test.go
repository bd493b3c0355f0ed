package process

import "testing"

func TestTheFamilyOfAProcessIsReadWhateverItsNameIs(t *testing.T) {
	for _, stat := range []string{"12 (sh) S 1 12 12 0 -1", "12 (a) b) (c) R 1 12 12 0", "12 () Z 1 12 12 0"} {
		if kin, ok := parseStat([]byte(stat)); !ok || kin != (kinship{1, 12, 12}) {
			t.Errorf("%q: %v", stat, kin)
		}
	}
	for _, stat := range []string{"", "12 (sh)", "12 (sh) S x y z"} {
		if _, ok := parseStat([]byte(stat)); ok {
			t.Errorf("%q was read", stat)
		}
	}
}

func TestOnlyDescendantsAreOurs(t *testing.T) {
	processes := map[int]kinship{
		1: {0, 1, 1}, 10: {1, 10, 10}, 11: {10, 11, 11}, 12: {11, 11, 11}, 20: {1, 20, 20}, 30: {31, 30, 30}, 31: {30, 31, 31},
	}
	for pid, ours := range map[int]bool{1: false, 10: false, 11: true, 12: true, 20: false, 30: false, 99: false} {
		if descendsFrom(10, pid, processes) != ours {
			t.Error(pid)
		}
	}
}
