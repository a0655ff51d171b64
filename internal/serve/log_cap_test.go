// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCappedLog: a log keeps its first and its last lines, whole, and a bound.
func TestCappedLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	f, mine := openLocked(name)
	if !mine {
		t.Fatal("no log")
	}
	defer f.Close()
	c := capLog(f).(*cappedLog)
	c.most, c.head, c.tail = 10_000, 1000, 3000
	if _, err := fmt.Fprintf(c, "level=INFO msg=%s pid=1\n", servingMessage); err != nil {
		t.Fatal(err)
	}
	last := ""
	for i := range 5000 {
		last = fmt.Sprintf("line %d\n", i)
		if _, err := c.Write([]byte(last)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if st, err := os.Stat(name); err != nil || st.Size() > c.most || st.Size() != c.size {
				t.Fatalf("after %d lines: %v, %d bytes counted, %v", i, st.Size(), c.size, err)
			}
		}
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !served(f) || !bytes.HasSuffix(b, []byte(last)) || strings.Count(string(b), cutNote) != 1 {
		t.Errorf("want the first line, one note and the last line:\n%s", b)
	}
	head, tail, _ := strings.Cut(string(b), cutNote)
	var at int
	for part, first := range map[string]int{head[strings.Index(head, "\n")+1:]: 0, tail: -1} {
		for i, line := range strings.Split(strings.TrimSuffix(part, "\n"), "\n") {
			n := 0
			if _, err := fmt.Sscanf(line, "line %d", &n); err != nil {
				t.Fatalf("not a whole line: %q", line)
			}
			if want := at + 1; i > 0 && n != want || i == 0 && first == 0 && n != 0 {
				t.Errorf("line %d after line %d", n, at)
			}
			at = n
		}
	}
}

// TestCappedOthers: what is no file, or cannot be read, is written as before.
func TestCappedOthers(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_WRONLY|unix.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if capLog(w) != w || capLog(f) != f {
		t.Error("a pipe or an unreadable file is capped")
	}
}
