// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// flapTime is how long devices go down and up. By default it is a few rounds. With
// SMCR_E2E_FLAP=1m it is a minute, and there are tests with devices of one side too.
func flapTime(t *testing.T) time.Duration {
	s := os.Getenv("SMCR_E2E_FLAP")
	if s == "" {
		return 12 * time.Second
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("SMCR_E2E_FLAP: %v", err)
	}
	return d
}

const (
	flapPort  = 5201
	redisPort = 6379
	// backTime is how long the test waits for two links after a device came up.
	backTime = testkind.Patience
)

// newSwitchedLab is a lab whose hosts have n devices each in one LAN, on one switch: if a
// device goes down, the other end of its cable stays up. The last link of the switch gets
// a copy of everything that it forwards.
func newSwitchedLab(t *testing.T, n int, tools ...string) (*lab, *netnstest.Host) {
	t.Helper()
	l := newLab(t, append([]string{"ip", "ethtool"}, tools...)...)
	sw := netnstest.New(t, netnstest.Options{Links: n})
	near := netnstest.New(t, netnstest.Options{Links: n})
	// near.B is the switch. Move the other ends of sw into it too.
	l.A, l.B = near.A, sw.B
	run := func(h *netnstest.Host, format string, args ...any) {
		t.Helper()
		argv := strings.Fields(fmt.Sprintf(format, args...))
		if out, err := h.Command(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	run(near.B, "ip link add lan type bridge")
	run(near.B, "ip link set lan up")
	for i := range n {
		far := fmt.Sprintf("far%d", i)
		run(sw.A, "ip link set eth%d netns %s name %s", i, near.B.Name, far)
		for _, port := range []string{far, fmt.Sprintf("eth%d", i)} {
			run(near.B, "ip addr flush dev %s", port)
			run(near.B, "ip link set %s master lan up", port)
		}
		for _, h := range []*netnstest.Host{l.A, l.B} {
			run(h, "ip -4 addr flush dev eth%d", i)
			run(h, "ip addr add %s/16 dev eth%d", h.Links[i].IPv4, i)
			// Frames must look as on a real wire, with one message each.
			run(h, "ethtool -K eth%d tx-udp-segmentation off", i)
		}
	}
	near.B.Links = append(near.B.Links, netnstest.Link{Name: "lan"})
	return l, near.B
}

// ownAddresses makes each device of a host answer ARP only for its own address. RoCE
// version 2 needs this if several devices are in one subnet: otherwise the kernel of the
// peer may use the MAC address of the wrong device.
func (l *lab) ownAddresses(h *netnstest.Host) {
	l.t.Helper()
	for _, link := range h.Links {
		for _, set := range []string{"arp_ignore=1", "arp_announce=2", "rp_filter=0"} {
			if out, err := h.Command(l.t.Context(), "sysctl", "-qw", "net.ipv4.conf."+link.Name+"."+set).CombinedOutput(); err != nil {
				l.t.Fatalf("%s: %v: %s", set, err, out)
			}
		}
	}
}

// An end is a device of a host, by its number.
type end struct {
	h *netnstest.Host
	i int
}

func (e end) String() string { return fmt.Sprintf("%s of %s", e.h.Links[e.i].Name, e.h.Name) }

// linkRow is a row of smcr link list.
type linkRow struct {
	LinkGroup string
	NetDev    string
	State     string
}

// linkWatch reads the output of smcr link list --watch on one host.
type linkWatch struct {
	mu   sync.Mutex
	part []byte // the beginning of a line
	rows []linkRow
	seen []string // each state that is different from the one before
	err  error
}

func (l *lab) watchLinks(h *netnstest.Host) *linkWatch {
	l.t.Helper()
	w := &linkWatch{}
	cmd := h.Command(context.Background(), bin("smcr"), "--backend", "user", "link", "list", "-o", "json", "--watch=100ms")
	cmd.Stdout = w
	h.GoCmd(l.t, cmd)
	return w
}

// Write implements io.Writer.
func (w *linkWatch) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.part = append(w.part, b...)
	for {
		line, rest, ok := bytes.Cut(w.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		var list struct{ Rows []linkRow }
		if err := json.Unmarshal(line, &list); err != nil {
			w.err = fmt.Errorf("smcr link list --watch: %w in %q", err, line)
		}
		w.part = rest
		w.rows = list.Rows
		var state []string
		for _, r := range w.rows {
			state = append(state, r.LinkGroup+" "+r.NetDev+" "+r.State)
		}
		if s := strings.Join(state, ", "); len(w.seen) == 0 || w.seen[len(w.seen)-1] != s {
			w.seen = append(w.seen, s)
		}
	}
}

// history returns the changes of the links.
func (w *linkWatch) history() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.seen, "\n")
}

// active returns the netdevs of the present active links, by link group.
func (w *linkWatch) active() (map[string][]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	groups := map[string][]string{}
	for _, r := range w.rows {
		list := groups[r.LinkGroup]
		if r.State == "ACTIVE" {
			list = append(list, r.NetDev)
		}
		groups[r.LinkGroup] = list
	}
	return groups, w.err
}

// flapper sets devices down and up, one after the other.
type flapper struct {
	t      *testing.T
	hosts  map[*netnstest.Host]*linkWatch
	period time.Duration
	flaps  int
	groups int             // the largest number of link groups on a host
	gone   []time.Duration // from device down to links without it
	back   []time.Duration // from device up to two links
}

// until waits until ok is true for all link groups of both hosts. ok gets the netdevs of
// the active links of a group.
func (f *flapper) until(limit time.Duration, ok func(h *netnstest.Host, devs []string) bool) error {
	return netnstest.Until(limit, func() error {
		for h, w := range f.hosts {
			groups, err := w.active()
			if err != nil {
				return netnstest.Stop(err)
			}
			f.groups = max(f.groups, len(groups))
			// A group without links is in its first contact. The TCP connection of this
			// first contact may use the device that is down.
			maps.DeleteFunc(groups, func(_ string, devs []string) bool { return len(devs) == 0 })
			if len(groups) == 0 {
				return errors.New("no link is listed")
			}
			for _, devs := range groups {
				if !ok(h, devs) {
					return fmt.Errorf("active links of the link groups of %s are %v", h.Name, groups)
				}
			}
		}
		return nil
	})
}

// two reports whether a group has two links, on any host.
func two(_ *netnstest.Host, devs []string) bool { return len(devs) == 2 }

// without returns a function that reports whether a group does not use e any more: it has
// one link, or two over the other device if it is a new group.
func without(e end) func(*netnstest.Host, []string) bool {
	return func(h *netnstest.Host, devs []string) bool {
		if h == e.h {
			return !slices.Contains(devs, e.h.Links[e.i].Name)
		}
		return len(devs) <= 2
	}
}

// flap sets e down for a time and up for a time. It returns when the links exist again.
func (f *flapper) flap(e end) error {
	step := func(up bool, want func(*netnstest.Host, []string) bool, took *[]time.Duration) error {
		start := time.Now()
		if err := e.h.SetLink(e.i, up); err != nil {
			return err
		}
		if err := f.until(backTime, want); err != nil {
			return fmt.Errorf("%v, up: %t: %w", e, up, err)
		}
		*took = append(*took, time.Since(start))
		if d := time.Since(start); d > time.Second { // Real time: it is only logged.
			f.t.Logf("at %v: %v, up: %t: %v", start.UTC().Format(time.TimeOnly), e, up, d)
		}
		time.Sleep(time.Until(start.Add(f.period))) // Real time: devices are down, and up, for so long.
		return nil
	}
	f.flaps++
	return errors.Join(step(false, without(e), &f.gone), step(true, two, &f.back))
}

// programs are programs that run on both hosts while devices go down and up.
type programs struct {
	l    *lab
	wg   sync.WaitGroup
	stop chan struct{}
	mu   sync.Mutex
	said []string
}

func (p *programs) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = append(p.said, fmt.Sprintf(format, args...))
}

// client runs a program on host B under smcr run. Its output goes to out.
func (p *programs) client(out io.Writer, limit time.Duration, argv ...string) error {
	ctx, cancel := context.WithTimeout(p.l.t.Context(), limit)
	defer cancel()
	argv = underArgv(argv...)
	cmd := p.l.B.Command(ctx, argv[0], argv[1:]...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &log
	err := cmd.Run()
	if m := summaryRE.FindStringSubmatch(log.String()); err == nil && (m == nil || m[2] != strconv.Itoa(linkGone(log.String()))) {
		err = errors.New("not all connections were SMC-R")
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", argv[0], err, tail(log.String(), 2000))
	}
	return err
}

var linkGoneRE = regexp.MustCompile(`(?m)^smcr: (\d+) over TCP: .*(?:no active link|link \d+ failed|is down)`)

// linkGone returns how many connections in the log of smcr run -v are TCP because the
// link in the server's message had ended when the client received the message: their TCP
// connections used the device that was down meanwhile (RFC 7609, section 3.5.2.3). Also
// counted are those whose link group lost its only link in its first contact.
func linkGone(log string) (n int) {
	for _, m := range linkGoneRE.FindAllStringSubmatch(log, -1) {
		k, _ := strconv.Atoi(m[1])
		n += k
	}
	return n
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// download makes curl download a file from nginx, slowly enough for the time d.
func (p *programs) download(url, digest string, size int64, d time.Duration) {
	start := time.Now()
	rate := size / int64(max(d/time.Second, 1))
	var got digester
	got.Hash = sha256.New()
	err := p.client(&got, d+time.Minute, "curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--limit-rate", fmt.Sprint(rate), url)
	if sum := hex.EncodeToString(got.Sum(nil)); err != nil || got.n != size || sum != digest {
		p.l.t.Errorf("curl: %v; %d bytes of %d, digest %s, want %s", err, got.n, size, sum, digest)
	}
	p.say("curl: %d bytes in %v", got.n, time.Since(start).Round(time.Millisecond))
}

// digester computes a digest and counts the bytes.
type digester struct {
	hash.Hash
	n int64
}

func (d *digester) Write(b []byte) (int, error) {
	d.n += int64(len(b))
	return d.Hash.Write(b)
}

// iperf makes iperf3 send in both directions at the same time.
func (p *programs) iperf(d time.Duration) {
	var out bytes.Buffer
	err := p.client(&out, d+time.Minute, "iperf3", "-c", p.l.A.Addr(), "-t", fmt.Sprint(int(d/time.Second)), "--bidir", "-P", "2", "--json")
	var report struct {
		Error string
		End   struct {
			Forth struct{ Bytes int64 } `json:"sum_received"`
			Back  struct{ Bytes int64 } `json:"sum_received_bidir_reverse"`
		}
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &report)
	}
	if err != nil || report.Error != "" || report.End.Forth.Bytes == 0 || report.End.Back.Bytes == 0 {
		p.l.t.Errorf("iperf3: %v, %+v\n%s", err, report, tail(out.String(), 1000))
	}
	p.say("iperf3: %d MiB forth, %d MiB back", report.End.Forth.Bytes>>20, report.End.Back.Bytes>>20)
}

// redis runs redis-benchmark again and again, so that connections begin and end.
func (p *programs) redis() {
	const requests = 5000
	runs := 0
	for {
		select {
		case <-p.stop:
			p.say("redis-benchmark: %d runs of twice %d requests", runs, requests)
			return
		default:
		}
		var out bytes.Buffer
		err := p.client(&out, time.Minute, "redis-benchmark", "-h", p.l.A.Addr(), "-c", "10", "-n", fmt.Sprint(requests), "-d", "2000", "-t", "set,get", "--csv")
		if err != nil || !strings.Contains(out.String(), `"SET","`) || !strings.Contains(out.String(), `"GET","`) {
			p.l.t.Errorf("redis-benchmark: %v\n%s", err, &out)
			return
		}
		runs++
	}
}

// TestFlap sets devices down and up while programs run. At least one device of each host
// is up at any time, so the programs must not notice.
func TestFlap(t *testing.T) {
	for _, tt := range []struct {
		name string
		eid  bool // version 2 over RoCE version 2
		ends func(l *lab) []end
	}{
		{"V1/Client", false, func(l *lab) []end { return []end{{l.B, 0}, {l.B, 1}} }},
		{"V1/Server", false, func(l *lab) []end { return []end{{l.A, 0}, {l.A, 1}} }},
		{"V1/Both", false, func(l *lab) []end { return []end{{l.A, 0}, {l.B, 1}, {l.B, 0}, {l.A, 1}} }},
		{"V2/Both", true, func(l *lab) []end { return []end{{l.A, 0}, {l.B, 1}, {l.B, 0}, {l.A, 1}} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := flapTime(t)
			if d < time.Minute && !strings.HasSuffix(tt.name, "Both") {
				t.Skip("its own is part of Both: set SMCR_E2E_FLAP=1m")
			}
			l, sw := newSwitchedLab(t, 2, "nginx", "curl", "iperf3", "redis-server", "redis-benchmark", "tshark")
			l.serve(l.A)
			l.serve(l.B)
			if tt.eid {
				for _, h := range []*netnstest.Host{l.A, l.B} {
					l.smcr(h, "--backend", "user", "ueid", "add", enterpriseID)
					l.ownAddresses(h)
				}
			}
			c := watchFailover(t, sw, tt.eid)
			f := l.flap(t, tt.ends(l), d)
			wantFailover(t, c, tt.eid, f.flaps)
		})
	}
}

// flap runs the programs while the devices go down and up.
func (l *lab) flap(t *testing.T, ends []end, d time.Duration) *flapper {
	size := int64(256 << 20)
	if d >= time.Minute {
		size = 1 << 30
	}
	nginx, digest := l.nginx(t.TempDir(), size)
	url := "http://" + l.A.Addr() + "/big"
	iperfServer := l.under(l.A, "iperf3", "-s", "-B", l.A.Addr())
	redisServer := l.under(l.A, "redis-server", "--bind", l.A.Addr(), "--port", fmt.Sprint(redisPort), "--save", "", "--appendonly", "no", "--protected-mode", "no", "--dir", t.TempDir(), "--daemonize", "no")
	for _, port := range []int{flapPort, redisPort} {
		if err := l.A.WaitListen(port, startTime); err != nil {
			t.Fatal(err, iperfServer.Log(), redisServer.Log())
		}
	}
	f := &flapper{t: t, hosts: map[*netnstest.Host]*linkWatch{l.A: l.watchLinks(l.A), l.B: l.watchLinks(l.B)}, period: time.Second / 2}
	p := &programs{l: l, stop: make(chan struct{})}
	p.wg.Go(func() { p.download(url, digest, size, d) })
	p.wg.Go(func() { p.iperf(d) })
	p.wg.Go(p.redis)
	defer func() {
		close(p.stop)
		p.wg.Wait()
		t.Log(strings.Join(p.said, "\n"))
		for _, server := range []*netnstest.Process{nginx, iperfServer, redisServer} {
			if err := server.Signal(os.Interrupt); err != nil {
				t.Errorf("%v: %v", server.Cmd.Args, err)
			}
			if err := server.Wait(endTime); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v: %v", server.Cmd.Args, err)
			}
		}
		l.wantNoConnections(l.A, l.B)
	}()
	if err := f.until(startTime, two); err != nil {
		t.Fatal(err)
	}
	var err error
	for deadline := time.Now().Add(d); err == nil && time.Now().Before(deadline) && !t.Failed(); {
		err = f.flap(ends[f.flaps%len(ends)])
	}
	if err != nil {
		t.Errorf("flap %d: %v\n%s:\n%s\n%s:\n%s", f.flaps, err, l.A.Name, f.hosts[l.A].history(), l.B.Name, f.hosts[l.B].history())
	}
	t.Logf("%d flaps; to one link: %s; to two: %s; at most %d link groups", f.flaps, spread(f.gone), spread(f.back), f.groups)
	return f
}

// spread returns a text with the least, the middle and the largest value.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "never"
	}
	s := slices.Sorted(slices.Values(d))
	return fmt.Sprintf("median %v, most %v", s[len(s)/2].Round(time.Millisecond), s[len(s)-1].Round(time.Millisecond))
}
