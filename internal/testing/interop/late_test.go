// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"smcr/internal/testing/guest"
	"testing"
	"time"
)

// TestLateAccept: clients on Linux use SMC-R with a server of the user-space stack that
// accepts later than Linux waits for an answer.
func TestLateAccept(t *testing.T) {
	t.Parallel()
	const (
		conns = 5
		late  = 8 * time.Second // Linux waits for 6 s
	)
	kernel, user := newBed(t, 1)
	at := netip.AddrPortFrom(netip.MustParseAddr(user.addr), 7300)
	const accept = "accept-now"
	stop := user.start(t, "listening", "serve", "-check", "-after", filepath.Join(guest.SharePath, accept), at.String())
	before := stats(t, kernel)
	client := kernel.Command(append(append([]string{}, kernel.prefix...),
		kernel.peerArgs("echo", "-parallel", "-n", fmt.Sprint(conns), "-bytes", "300000", at.String())...)...)
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*side{kernel, user} {
		eventually(t, s.backend+" has all connections over SMC-R", func() bool {
			n := 0
			for _, c := range active(t, s) {
				if c.Mode == "SMCR" {
					n++
				}
			}
			return n == conns
		})
	}
	var r guest.Result
	ended := make(chan error, 1)
	go func() {
		var err error
		r, err = client.Wait(t.Context())
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("the client has ended before the server accepts: %v\n%s%s", err, r.Stdout, r.Stderr)
	case <-time.After(late): // Real time: it is longer than Linux waits for an answer.
	}
	if err := os.WriteFile(filepath.Join(user.Share(), accept), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	if r := stop(); r.Stdout != "listening\n" {
		t.Errorf("the server says %q\n%s", r.Stdout, r.Stderr)
	}
	if n := stats(t, kernel).Fallbacks.Client - before.Fallbacks.Client; n != 0 {
		t.Errorf("%d connections of Linux became TCP", n)
	}
}
