// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/rendezvous"
)

// announced reports whether a server has announced SMC to the host.
func (h *Host) announced(t *testing.T, d *Dialog) (is bool) {
	t.Helper()
	rc, err := d.Conn.SyscallConn()
	if err == nil {
		cerr := rc.Control(func(fd uintptr) { is, err = h.option.PeerSMC(int(fd)) })
		if err == nil {
			err = cerr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// mutes returns to whom a victim announces nothing.
func (v *victim) mutes(t *testing.T) (all []nl.Learnt) {
	t.Helper()
	l, err := nl.LearnerOf(v.stack.Control())
	if err != nil {
		t.Fatal(err)
	}
	list, err := l.Learnt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if m.Why == uint32(smc.DiagSilent) {
			all = append(all, m)
		}
	}
	return all
}

// TestSilentAtProgram: a host whose connections to a program with a stack announce SMC and say nothing, or too little, has a share of what the
// program may have undecided. Beyond it, and then for a time, its connections are TCP, and work. Others use SMC-R meanwhile.
func TestSilentAtProgram(t *testing.T) {
	testkind.System(t)
	const others, many = 20, rendezvous.MaxUndecidedOfOrigin + 200
	for name, say := range map[string]string{"nothing": "", "the header of a message": "\xe2\xd4\xc3\xd9\x01\x00\x34\x10"} {
		t.Run(name, func(t *testing.T) {
			l := newLabOf(t, userstack.Config{})
			var all []*Dialog
			defer func() {
				for _, d := range all {
					_ = d.Close()
				}
			}()
			announced, last := 0, (*Dialog)(nil)
			dial := func(n int) {
				t.Helper()
				for range n {
					list, err := l.C.Dial(t.Context(), l.A.address(), 1)
					if err != nil {
						t.Fatal(err)
					}
					if last = list[0]; l.C.announced(t, last) {
						announced++
						if _, err := io.WriteString(last.Conn, say); err != nil {
							t.Fatal(err)
						}
					}
					all = append(all, last)
				}
			}
			// works checks that the last connection is TCP.
			works := func() {
				t.Helper()
				if l.C.announced(t, last) {
					t.Fatal("a connection beyond the share is announced")
				}
				_ = last.Conn.SetDeadline(time.Now().Add(echoTime))
				got := make([]byte, 5)
				if _, err := io.WriteString(last.Conn, "hello"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(last.Conn, got); err != nil || string(got) != "hello" {
					t.Errorf("a connection beyond the share gets %q, %v", got, err)
				}
			}
			dial(many)
			t.Logf("%d of %d connections are announced", announced, many)
			works()
			for range others {
				c := l.B.dialSMC(t, l.A)
				defer c.Close()
				if err := exchange(c, rand.New(rand.NewPCG(2, 3)), 1000); err != nil {
					t.Error(err)
				}
			}
			testkind.Eventually(t, "the host is known to be silent", func() (any, bool) { m := l.A.mutes(t); return m, len(m) == 1 })
			if m := l.A.mutes(t)[0]; m.Remote.Addr() != l.C.Links[0].IPv4 || m.Left <= 0 {
				t.Errorf("said to be silent: %+v", m)
			}
			dial(1)
			works()
			f, err := l.A.stack.Control().Fallbacks(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			reasons := map[smc.Diagnosis]uint64{}
			for _, r := range f.Reasons {
				reasons[smc.Diagnosis(r.Reason)] += r.Count
			}
			if reasons[smc.DiagSilent] == 0 || reasons[smc.DiagMem] == 0 {
				t.Errorf("reasons for TCP: %v", reasons)
			}
			c := l.B.dialSMC(t, l.A)
			c.Close()
		})
	}
}
