// SPDX-License-Identifier: Apache-2.0

package cmdtest

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal returns a terminal for the output of a command, and a function that closes it and
// returns what was written to it, with "\n" for ends of lines.
func Terminal(t *testing.T) (tty *os.File, written func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	read := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(master) // EIO after the last close of the other end
		read <- string(b)
	}()
	return tty, func() string {
		_ = tty.Close()
		return strings.ReplaceAll(<-read, "\r\n", "\n")
	}
}
