// SPDX-License-Identifier: Apache-2.0

package smctools_test

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A recording is a command of smc-tools 1.8.5 on Linux 6.12, its output and exit status,
// and the netlink messages between it and the kernel.
type recording struct {
	name     string // PHASE-NUMBER
	argv     []string
	status   int
	out, err string
	asked    []*question
}

// A question is a netlink request and the datagrams of the answer.
type question struct {
	request []byte
	answers [][]byte
	used    bool
}

// phases are the files of testdata/golden in the order in which they were recorded. Each
// begins with the state at the end of the one before.
var phases = []string{"p0nomod", "p0auto", "p1nodev", "p2edit", "p2user", "p3live", "p6end"}

// readRecordings reads a file of testdata/golden.
func readRecordings(t testing.TB, phase string) []*recording {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "golden", phase+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []*recording
	var r *recording
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "out|"):
			r.out += line[4:] + "\n"
		case strings.HasPrefix(line, "err|"):
			r.err += line[4:] + "\n"
		case word == "###":
			r = &recording{name: rest}
			list = append(list, r)
		case word == "argv":
			for rest != "" {
				quoted, err := strconv.QuotedPrefix(rest)
				if err != nil {
					t.Fatalf("%s: %v in %s", r.name, err, rest)
				}
				arg, _ := strconv.Unquote(quoted)
				r.argv = append(r.argv, arg)
				rest = strings.TrimLeft(rest[len(quoted):], " ")
			}
		case word == "rc":
			r.status, err = strconv.Atoi(rest)
		case word == ">" || word == "<":
			_, digits, _ := strings.Cut(rest, " ")
			var b []byte
			b, err = hex.DecodeString(digits)
			if word == ">" {
				r.asked = append(r.asked, &question{request: b})
			} else if n := len(r.asked); n > 0 {
				r.asked[n-1].answers = append(r.asked[n-1].answers, b)
			}
		case line != "":
			t.Fatalf("%s: unknown line %q", phase, line)
		}
		if err != nil {
			t.Fatalf("%s: %q: %v", phase, line, err)
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// Netlink numbers.
const (
	msgError, msgDone            = 2, 3
	typeController               = 16
	flagMulti, flagAck, flagDump = 2, 4, 0x300
	headerLen                    = 16
)

// A header is the header of a netlink message.
type header struct {
	length   uint32
	typ      uint16
	flags    uint16
	seq, pid uint32
}

func headerOf(b []byte) header {
	ne := binary.NativeEndian
	return header{ne.Uint32(b), ne.Uint16(b[4:]), ne.Uint16(b[6:]), ne.Uint32(b[8:]), ne.Uint32(b[12:])}
}

func message(h header, payload []byte) []byte {
	ne := binary.NativeEndian
	b := ne.AppendUint32(nil, uint32(headerLen+len(payload)))
	b = ne.AppendUint16(b, h.typ)
	b = ne.AppendUint16(b, h.flags)
	b = ne.AppendUint32(b, h.seq)
	b = ne.AppendUint32(b, h.pid)
	return append(b, payload...)
}

// split returns the messages of a datagram.
func split(t testing.TB, b []byte) [][]byte {
	var out [][]byte
	for len(b) >= headerLen {
		n := int(headerOf(b).length)
		if n < headerLen || n > len(b) {
			t.Errorf("malformed datagram %x", b)
			return nil
		}
		out = append(out, b[:n])
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}
