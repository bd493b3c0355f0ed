package terminal

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestModesAreTakenOverAsFarAsTheyAreKnown(t *testing.T) {
	attributes := unix.Termios{Iflag: unix.ICRNL, Lflag: unix.ECHO}
	attributes.Cc[unix.VINTR] = 3
	applyModes(&attributes, []byte{
		3, 0, 0, 0, 8, // erase with ^H
		1, 0, 0, 0, 255, // no interrupt
		36, 0, 0, 0, 0, // -icrnl
		51, 0, 0, 0, 1, // icanon
		128, 0, 0, 150, 0, // a speed: ignored
		77, 0, 0, 0, 1, // unknown
		0, 53, 0, 0, 0, 0, // the end; the rest is ignored
	})
	if attributes.Cc[unix.VERASE] != 8 || attributes.Cc[unix.VINTR] != 0 {
		t.Error(attributes.Cc)
	}
	if attributes.Iflag != 0 || attributes.Lflag != unix.ECHO|unix.ICANON {
		t.Error(attributes.Iflag, attributes.Lflag)
	}
}

func TestModesThatAreCutShortHarmNobody(t *testing.T) {
	for length := range 12 {
		applyModes(&unix.Termios{}, []byte{1, 0, 0, 0, 3, 2, 0, 0, 0, 4, 200, 1}[:length])
	}
}
