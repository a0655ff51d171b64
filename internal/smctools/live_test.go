// SPDX-License-Identifier: Apache-2.0

package smctools_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// A site is two hosts, each with a user-space stack.
type site struct {
	*netnstest.Pair
	t   *testing.T
	bin string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{netnstest.New(t, netnstest.Options{}), t, build(t)}
	for _, h := range []*netnstest.Host{s.A, s.B} {
		p := h.Go(t, filepath.Join(s.bin, "smcr"), "serve", "--no-default-eid")
		err := netnstest.Until(testkind.Patience, func() error {
			select {
			case <-p.Done():
				return netnstest.Stop(fmt.Errorf("smcr serve ended:\n%s", p.Log()))
			default:
			}
			_, err := s.try(h, "smcr", "--backend", "user", "info")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // before the host is removed
			_ = p.Signal(syscall.SIGTERM)
			if err := p.Wait(testkind.Patience); err != nil {
				t.Errorf("smcr serve: %v\n%s", err, p.Log())
			}
		})
	}
	return s
}

func (s *site) try(h *netnstest.Host, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkind.Patience)
	defer cancel()
	env := []string{"SMCR_STATS_CACHE=" + filepath.Join(s.bin, "cache-"+h.Name), filepath.Join(s.bin, name)}
	return h.Output(ctx, "env", append(env, args...)...)
}

// prints runs a program and checks that its output matches.
func (s *site) prints(want string, h *netnstest.Host, name string, args ...string) {
	s.t.Helper()
	out, err := s.try(h, name, args...)
	if err != nil || !regexp.MustCompile("(?s)^"+want+"$").MatchString(out) {
		s.t.Errorf("%s %q: %v, printed\n%s\nwant match for\n%s", name, args, err, out, want)
	}
}

// TestLive runs the programs against user-space stacks that carry connections.
func TestLive(t *testing.T) {
	s := newSite(t)
	addr := s.B.Addr()

	server := s.B.Go(t, filepath.Join(s.bin, "smc_chk"), "-S")
	if err := server.WaitOutput("Server started on port 37373\n", testkind.Patience); err != nil {
		t.Fatalf("%v\n%s", err, server.Log())
	}

	t.Run("smc_chk", func(t *testing.T) {
		s := &site{s.Pair, t, s.bin}
		s.prints(`Test with target IP `+addr+` and port 37373
  Live test \(SMC-D and SMC-R\)
     Success, using SMC-R

`, s.A, "smc_chk", "-C", addr)
		s.prints(`\[DEBUG\] Interfaces to check: eth0
.*\[DEBUG\] Running client: smc_run .*
\[DEBUG\] Client result: SMCR
     Success, using SMC-R

`, s.A, "smc_chk", "-d", "-C", addr)
		// Nobody listens on this port, so the client has no connection.
		s.prints(`.*     Failed, no connection\n\n`, s.A, "smc_chk", "-C", addr, "-p", "9")
		// A host has no connections over SMC-R with itself.
		s.prints(`Checking active link:    eth0
  Live test \(SMC-D and SMC-R, EXPERIMENTAL\)
     No SMC: connections within this machine are TCP

`, s.A, "smc_chk", "-l", "eth0")
		s.prints(`.*SMC-D not configured\n\n`, s.A, "smc_chk", "-s", "eth0")
	})

	t.Run("smc_run", func(t *testing.T) {
		s := &site{s.Pair, t, s.bin}
		out, err := s.try(s.A, "smc_run", "-r", "128k", "-t", "1M", "sh", "-c", "echo $SMC_RCVBUF $SMC_SNDBUF $SMC_DEBUG; exit 7")
		if err == nil || !strings.Contains(err.Error(), "exit status 7") || out != "131072 1048576 0\n" {
			t.Errorf("printed %q, %v", out, err)
		}
		if _, err := s.try(s.A, "smc_run", "no-such-program"); err == nil || !strings.Contains(err.Error(), "exit status 127: smc_run: no-such-program: no such program in PATH") {
			t.Errorf("no such program: %v", err)
		}
	})

	t.Run("lists", func(t *testing.T) {
		s := &site{s.Pair, t, s.bin}
		client := s.A.Go(t, filepath.Join(s.bin, "smc_run"), "bash", "-c", "exec 3<>/dev/tcp/"+addr+"/37373; echo connected; sleep 600")
		if err := client.WaitOutput("connected", testkind.Patience); err != nil {
			t.Fatalf("%v\n%s", err, client.Log())
		}
		defer client.Kill()
		peer := regexp.QuoteMeta(addr) + ":37373 "
		s.prints(`State  .*Mode \nACTIVE         00000 \d{7} .*`+peer+` .*\d{4} SMCR \n`, s.A, "smcss")
		s.prints(`State  .*Peer-GID\nACTIVE .*SMCR CLNT .{15} 01   01     [0-9a-f:]{39}  [0-9a-f:]{39}\n`, s.A, "smcss", "-R")
		s.prints(`LG-ID    LG-Role  .*PNET-ID \n[0-9a-f]{8} CLNT     SINGLE      0       1   {17}\n`, s.A, "smcr", "linkgroup")
		s.prints(`LG-ID    : [0-9a-f]{8}\nLG-Role  : CLNT\n.*#Conns   : 1\nSndbuf   : \d+ B\nRMB      : \d+ B\n`, s.A, "smcr", "-d", "linkgroup", "show")
		s.prints(`LG-ID .*\n[0-9a-f]{8} CLNT     SINGLE   eth0            LINK_ACTIVE          1  \n`, s.A, "smcr", "linkgroup", "link-show")
		s.prints(`Net-Dev .*\neth0 .* 1    ACTIVE  0              .{3}       1   {17}\n`, s.A, "smcr", "device")
		s.prints(`Kernel Capabilities\n.*RoCE:             v1 v2\n`, s.A, "smcr", "info")
		s.prints(``, s.A, "smcd", "linkgroup")
		s.prints(``, s.A, "smcd", "device")
		s.prints(`\nsmcss utility.*SMC-R Connections Summary.*`, s.A, "smc_dbg")
	})

	t.Run("changes", func(t *testing.T) {
		s := &site{s.Pair, t, s.bin}
		s.prints(``, s.A, "smc_pnet", "-a", "net1", "-I", "eth0")
		s.prints(`NET1 eth0 n/a 255\n`, s.A, "smc_pnet")
		s.prints(`NET1\*\n`, s.A, "smc_chk", "-i", "eth0")
		s.prints(``, s.A, "smc_pnet", "-f")
		s.prints(``, s.A, "smc_pnet", "-s")
		s.prints(``, s.A, "smcr", "ueid", "add", "A.B")
		s.prints(`A\.B *\n`, s.A, "smcr", "ueid")
		s.prints(``, s.A, "smcr", "ueid", "del", "A.B")
		s.prints(``, s.A, "smcr", "ueid")
		s.prints(`.*  SMC connections {23}[1-9].*`, s.A, "smcr", "stats", "reset")
		s.prints(`.*  SMC connections {23}0\n.*`, s.A, "smcr", "stats")
		s.prints(`.*  SMC connections {23}[1-9].*`, s.A, "smcr", "-a", "stats")
	})
}
