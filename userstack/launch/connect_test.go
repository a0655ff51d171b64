// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

const ms = time.Millisecond

func TestConnect(t *testing.T) {
	testkind.System(t)
	tests := []struct {
		name  string
		stack *fakeStack
		kind  string // what the program ends up with
	}{
		{"smc", &fakeStack{}, "smc"},
		{"smc, slow TCP", &fakeStack{estDelay: 40 * ms}, "smc"},
		{"smc, slow CLC", &fakeStack{clcDelay: 60 * ms}, "smc"},
		{"not a candidate", &fakeStack{notCandidate: true}, "native"},
		{"no peer", &fakeStack{noPeer: true}, "native"},
		{"no peer, slow TCP", &fakeStack{noPeer: true, estDelay: 40 * ms}, "native"},
		{"declined", &fakeStack{decline: "no link"}, "native"},
		{"declined, slow", &fakeStack{decline: "no link", estDelay: 40 * ms, clcDelay: 40 * ms}, "native"},
	}
	addrs := map[string]string{
		"IPv4": echoServer(t, "tcp4", "127.0.0.1:0", ""),
		"IPv6": echoServer(t, "tcp6", "[::1]:0", ""),
	}
	_, port, _ := net.SplitHostPort(addrs["IPv4"])
	addrs["v4-mapped"] = "[::ffff:127.0.0.1]:" + port
	for _, tt := range tests {
		for family, addr := range addrs {
			t.Run(tt.name+"/"+family, func(t *testing.T) {
				t.Parallel()
				for _, how := range []string{"blocking", "nonblocking"} {
					stack := tt.stack.fresh()
					stack.decide = 5 * time.Second // on a busy machine, too
					res := probe(t, stack, how, addr, tt.kind)
					n := map[string]uint64{"blocking": 2, "nonblocking": 4}[how]
					var tcp uint64
					for _, v := range res.stats.TCP {
						tcp += v
					}
					if smc := res.stats.ByMode[broker.ModeSMCR]; tt.kind == "smc" && smc != n || tt.kind != "smc" && tcp != n {
						t.Errorf("%s: %+v, want %d %s", how, res.stats, n, tt.kind)
					}
					if tt.stack.decline == "" {
						continue
					}
					// The program may be done before the stack has noted the last one.
					for deadline := time.Now().Add(patience); stack.released.Load() != int64(n) && time.Now().Before(deadline); {
						time.Sleep(ms)
					}
					if got := stack.released.Load(); got != int64(n) {
						t.Errorf("%s: %d of %d declined connections were released", how, got, n)
					}
				}
			})
		}
	}
}

func TestConnectFails(t *testing.T) {
	testkind.System(t)
	good := echoServer(t, "tcp4", "127.0.0.1:0", "")
	t.Run("refused", func(t *testing.T) {
		probe(t, &fakeStack{}, "refused", closedPort(t), errnoArg(unix.ECONNREFUSED), good)
	})
	t.Run("refused natively", func(t *testing.T) {
		probe(t, &fakeStack{notCandidate: true}, "refused", closedPort(t), errnoArg(unix.ECONNREFUSED), good)
	})
	t.Run("broken by the peer", func(t *testing.T) {
		probe(t, &fakeStack{failCLC: syscall.EPROTO, clcDelay: 30 * ms}, "refused", good, errnoArg(unix.EPROTO))
	})
}

func TestConnectAgain(t *testing.T) {
	testkind.System(t)
	probe(t, &fakeStack{clcDelay: 80 * ms}, "again", echoServer(t, "tcp4", "127.0.0.1:0", ""))
}

func TestConnectTimeout(t *testing.T) {
	testkind.System(t)
	stack := &fakeStack{clcGate: make(chan struct{})}
	p := startProbe(t, stack, "timeout", echoServer(t, "tcp4", "127.0.0.1:0", ""))
	if got := p.line(t); got != "in progress" {
		t.Fatal(got)
	}
	close(stack.clcGate)
	if res := p.wait(t); res.status != 0 {
		t.Errorf("status %d\n%s", res.status, res.out)
	}
}

func TestDuplicates(t *testing.T) {
	testkind.System(t)
	probe(t, &fakeStack{}, "dup", echoServer(t, "tcp4", "127.0.0.1:0", ""))
}

func TestOptionsCarriedOver(t *testing.T) {
	testkind.System(t)
	probe(t, &fakeStack{}, "carry", echoServer(t, "tcp4", "127.0.0.1:0", ""))
}

func TestPending(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	for name, stack := range map[string]*fakeStack{
		"TCP": {estGate: make(chan struct{})}, "CLC": {clcGate: make(chan struct{})},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProbe(t, stack, "pending", addr)
			if got := p.line(t); got != "pending" {
				t.Fatal(got)
			}
			if stack.estGate != nil {
				close(stack.estGate)
			} else {
				close(stack.clcGate)
			}
			if res := p.wait(t); res.status != 0 {
				t.Errorf("status %d\n%s", res.status, res.out)
			}
		})
	}
}

// TestOptionsInHandshake: from the CLC handshake on the service sets options,
// which it has to know of; not the launcher, although it has the socket still.
func TestOptionsInHandshake(t *testing.T) {
	testkind.System(t)
	stack := &fakeStack{clcGate: make(chan struct{})}
	p := startProbe(t, stack, "setting", echoServer(t, "tcp4", "127.0.0.1:0", ""))
	for end := time.Now().Add(patience); stack.options.Load() == 0; time.Sleep(ms) {
		if time.Now().After(end) {
			t.Error("the service was not asked to set an option")
			break
		}
	}
	close(stack.clcGate)
	if res := p.wait(t); res.status != 0 {
		t.Errorf("status %d\n%s", res.status, res.out)
	}
}

func TestServerSpeaksFirst(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "welcome")
	for name, stack := range map[string]*fakeStack{
		"smc":               {},
		"declined":          {decline: "no link", clcDelay: 30 * ms},
		"no peer, slow TCP": {noPeer: true, estDelay: 40 * ms},
	} {
		t.Run(name, func(t *testing.T) { probe(t, stack, "serverfirst", addr, "welcome") })
	}
}

func TestCloseEarly(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	for name, stack := range map[string]*fakeStack{
		"TCP":      {estDelay: 200 * ms},
		"CLC":      {clcDelay: 200 * ms},
		"declined": {clcDelay: 10 * ms, decline: "no link"},
	} {
		t.Run(name, func(t *testing.T) {
			probe(t, stack, "closeearly", addr)
			until(t, "no connection outlives the program", func() bool { return stack.active.Load() == 0 })
		})
	}
}

func TestReset(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "some text")
	res := probe(t, &fakeStack{breakAfter: 4, closeDelay: 300 * ms}, "reset", addr, "some")
	if res.stats.Broken != 1 {
		t.Errorf("%d broken connections, want 1", res.stats.Broken)
	}
}

func TestRefusals(t *testing.T) {
	testkind.System(t)
	probe(t, &fakeStack{}, "refusals")
}

func TestGoProgram(t *testing.T) {
	testkind.System(t)
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		for name, stack := range map[string]*fakeStack{
			"smc": {}, "slow": {estDelay: 30 * ms, clcDelay: 30 * ms}, "declined": {decline: "no link"}, "native": {notCandidate: true},
		} {
			t.Run(name+" "+addr, func(t *testing.T) {
				t.Parallel()
				probe(t, stack.fresh(), "goecho", addr)
			})
		}
	}
}

func TestServiceGone(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	stack := &fakeStack{t: t}
	cl := stack.client()
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	probeEnvSet := []string{probeEnv + "=blocking"}
	res := launchedWith(t, t.Context(), Config{Argv: []string{"/proc/self/exe", addr, "native"}, Env: probeEnvSet, Broker: cl}, "")
	if res.status != 0 || res.stats.TCP[ReasonNoService] != 2 {
		t.Errorf("status %d, %+v\n%s", res.status, res.stats, res.out)
	}
}

func TestAccept(t *testing.T) {
	testkind.System(t)
	for name, stack := range map[string]*fakeStack{
		"smc": {}, "declined": {decline: "no link", clcDelay: 20 * ms}, "no option": {noPeer: true}, "native": {notCandidate: true},
	} {
		for _, how := range []string{"block", "nonblock", "threads"} {
			for _, addr := range []string{"127.0.0.1:0", "[::]:0"} {
				t.Run(name+"/"+how+"/"+addr, func(t *testing.T) {
					t.Parallel()
					testAccept(t, stack.fresh(), how, addr)
				})
			}
		}
	}
}

func testAccept(t *testing.T, stack *fakeStack, how, addr string) {
	const conns = 5
	p := startProbe(t, stack, "server", addr, how, "#####"[:conns])
	_, port, err := net.SplitHostPort(p.line(t))
	if err != nil {
		t.Fatal(err)
	}
	errc := make(chan error, conns)
	for i := range conns {
		go func() {
			errc <- func() error {
				c, err := net.Dial("tcp4", "127.0.0.1:"+port)
				if err != nil {
					return err
				}
				defer c.Close()
				msg := "message " + strconv.Itoa(i)
				_, _ = io.WriteString(c, msg)
				_ = c.SetDeadline(time.Now().Add(patience))
				b := make([]byte, len(msg))
				if _, err := io.ReadFull(c, b); err != nil {
					return err
				}
				if string(b) != msg {
					t.Errorf("echo %q, want %q", b, msg)
				}
				return nil
			}()
		}()
	}
	for range conns {
		if err := <-errc; err != nil {
			t.Error(err)
		}
	}
	res := p.wait(t)
	if res.status != 0 {
		t.Fatalf("status %d\n%s", res.status, res.out)
	}
	switch {
	case stack.notCandidate:
		if stack.accepts.Load() != 0 {
			t.Error("a native listener's connections were offered")
		}
	case stack.noPeer, stack.decline != "":
		var n uint64
		for _, v := range res.stats.TCP {
			n += v
		}
		if n != conns {
			t.Errorf("%+v, want %d TCP", res.stats, conns)
		}
	default:
		if res.stats.ByMode[broker.ModeSMCR] != conns {
			t.Errorf("%+v, want %d SMC", res.stats, conns)
		}
	}
}
