// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// carriedBed is a bed whose stacks have one connection, and carry it by another path than that between the hosts: what the
// programs receive comes from the test.
type carriedBed struct {
	*bed
	programs, inner [2]net.Conn // of the client, and of the server
	received        [2]atomic.Int64
}

func newCarriedBed(t *testing.T, address func(*netnstest.Host) string) *carriedBed {
	t.Helper()
	var mu sync.Mutex
	c := &carriedBed{}
	made := make(chan struct{}, 2)
	c.bed = newBed(t, func(b *bed, f *Flow) {
		_, giveBack, ok := b.carry(f)
		if !ok {
			return
		}
		giveBack()
		inner, err := f.program().tcp()
		if err != nil {
			b.t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		c.inner[map[smc.Role]int{smc.Client: 0, smc.Server: 1}[f.Role]] = inner
		made <- struct{}{}
	})
	hasty(t, c.A)
	hasty(t, c.B)
	client, server := c.connect(c.listen(address(c.B)))
	<-made
	<-made
	c.programs = [2]net.Conn{client, server}
	for i, p := range c.programs {
		go func() {
			buf := make([]byte, 1000)
			for {
				n, err := p.Read(buf)
				if err != nil {
					return
				}
				c.received[i].Add(int64(n))
			}
		}()
	}
	t.Cleanup(func() {
		for _, inner := range c.inner {
			inner.Close()
		}
	})
	return c
}

// send sends to a program without end: it only receives.
func (c *carriedBed) send(i int) {
	go func() {
		for {
			if _, err := c.inner[i].Write([]byte("hello")); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond) // Real time: the stream is slow.
		}
	}()
}

// goesOn waits until a program has received something more.
func (c *carriedBed) goesOn(i int, when string) {
	c.t.Helper()
	before := c.received[i].Load()
	testkind.Eventually(c.t, fmt.Sprintf("program %d receives %s", i, when), func() (any, bool) {
		now := c.received[i].Load()
		return now - before, now > before+500 // more than what is sent without an answer
	})
}

// addresses are those of both families at which a host can be reached.
var addresses = map[string]func(*netnstest.Host) string{"ipv4": (*netnstest.Host).Addr, "ipv6": (*netnstest.Host).Addr6}

// hasty has the kernel of a host ask for its neighbours soon, and give them up soon.
func hasty(t *testing.T, h *netnstest.Host) {
	t.Helper()
	neighbourTimes(t, h, map[string]string{"base_reachable_time_ms": "500", "delay_first_probe_time": "1", "retrans_time_ms": "100", "ucast_solicit": "2"})
}

// unhurried has it wait for as long as by default: for eight seconds.
func unhurried(t *testing.T, h *netnstest.Host) {
	t.Helper()
	neighbourTimes(t, h, map[string]string{"base_reachable_time_ms": "30000", "delay_first_probe_time": "5", "retrans_time_ms": "1000", "ucast_solicit": "3"})
}

func neighbourTimes(t *testing.T, h *netnstest.Host, values map[string]string) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		for name, value := range values {
			for _, l := range h.Links {
				if err := h.Do(func() error {
					return os.WriteFile(filepath.Join("/proc/sys/net", family, "neigh", l.Name, name), []byte(value), 0)
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestPathMoves has a program whose route goes by another device since its own is down: it receives by that, too.
func TestPathMoves(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	c := newCarriedBed(t, (*netnstest.Host).Addr)
	out, err := c.A.Command(t.Context(), "sh", "-c", strings.Join([]string{
		"ip link add other type veth peer name rest",
		"ip link set rest up",
		"ip link set other up",
		"ip route add " + c.B.Addr() + "/32 dev other metric 1000",
		"ip neigh add " + c.B.Addr() + " dev other lladdr 02:00:00:00:00:77",
	}, " && ")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.must(c.d[0].AddDevice(c.index(c.A, "other")))
	c.must(c.A.SetLink(0, false))
	c.send(0)
	if _, err := c.programs[0].Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	c.goesOn(0, "by another device")
}

// TestAnnouncedElsewhere has a SYN that is lost, and sent again by another device: it is announced there, too.
func TestAnnouncedElsewhere(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBedOf(t, netnstest.Options{Links: 2}, splice, func(*Config) {})
	l := b.listen(b.B.Addr())
	b.works(l) // the neighbours know each other
	b.gone()
	b.must(b.B.SetLoss(0, 1))
	moved := make(chan error, 1)
	go func() {
		moved <- func() error {
			if !testkind.Poll(testkind.Patience, func() bool { return left(b.d[0]) != "" }) {
				return errors.New("nothing was announced")
			}
			for i, h := range []*netnstest.Host{b.A, b.B} {
				peer := []*netnstest.Host{b.B, b.A}[i]
				out, err := h.Command(t.Context(), "ip", "route", "add", peer.Addr()+"/32", "via", peer.Links[1].IPv4.String(), "src", h.Addr()).CombinedOutput()
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
			}
			return nil
		}()
	}()
	b.works(l)
	b.must(<-moved)
	b.wantTaken(2, 2)
}
