// SPDX-License-Identifier: Apache-2.0

package nl_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/nl/nltest"
)

// serve starts a server for ctl and returns its address, an abstract name.
func serve(t *testing.T, ctl nl.Control, cfg nl.ServerConfig) string {
	t.Helper()
	address := fmt.Sprintf("@smcr-test-%d/%s", os.Getpid(), t.Name())
	return serveAt(t, address, ctl, cfg)
}

func serveAt(t *testing.T, address string, ctl nl.Control, cfg nl.ServerConfig) string {
	t.Helper()
	l, err := nl.ListenUnix(address)
	if err != nil {
		t.Fatal(err)
	}
	s := nl.NewServer(ctl, cfg)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close server: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return address
}

func dial(t *testing.T, address string) *nl.Client {
	t.Helper()
	c, err := nl.DialUnix(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSuiteFake(t *testing.T) {
	nltest.RunControlSuite(t, func(*testing.T) nl.Control {
		return nltest.NewFake(nltest.SampleState())
	}, nltest.Options{})
}

func TestSuiteClientServer(t *testing.T) {
	nltest.RunControlSuite(t, func(t *testing.T) nl.Control {
		return dial(t, serve(t, nltest.NewFake(nltest.SampleState()), nl.ServerConfig{}))
	}, nltest.Options{})
}

// TestSuiteTwoHops runs the suite on a server whose Control is a client of another
// server.
func TestSuiteTwoHops(t *testing.T) {
	nltest.RunControlSuite(t, func(t *testing.T) nl.Control {
		dir := t.TempDir()
		far := serveAt(t, filepath.Join(dir, "far"), nltest.NewFake(nltest.SampleState()), nl.ServerConfig{})
		return dial(t, serveAt(t, filepath.Join(dir, "near"), dial(t, far), nl.ServerConfig{}))
	}, nltest.Options{})
}

// everything calls all methods of a Control that read.
func everything(t *testing.T, c nl.Control) map[string]any {
	t.Helper()
	ctx := t.Context()
	all := map[string]any{}
	keep := func(what string, v any, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		all[what] = v
	}
	sys, err := c.SysInfo(ctx)
	keep("SysInfo", sys, err)
	groups, err := c.LinkGroups(ctx)
	keep("LinkGroups", groups, err)
	links, err := c.Links(ctx)
	keep("Links", links, err)
	devices, err := c.Devices(ctx)
	keep("Devices", devices, err)
	st, err := c.Stats(ctx)
	keep("Stats", st, err)
	fb, err := c.Fallbacks(ctx)
	keep("Fallbacks", fb, err)
	eids, err := c.UEIDs(ctx)
	keep("UEIDs", eids, err)
	seid, err := c.SEID(ctx)
	keep("SEID", seid, err)
	hs, err := c.HSLimitation(ctx)
	keep("HSLimitation", hs, err)
	pnets, err := c.PNETs(ctx)
	keep("PNETs", pnets, err)
	conns, err := c.Connections(ctx)
	keep("Connections", conns, err)
	if d, ok := c.(nl.ControlSMCD); ok {
		g, err := d.LinkGroupsD(ctx)
		keep("LinkGroupsD", g, err)
		dev, err := d.DevicesD(ctx)
		keep("DevicesD", dev, err)
	}
	return all
}

var sameAddr = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

// TestClientServerIdentity checks that Client(Server(x)) returns the same as x, with
// tables of many datagrams.
func TestClientServerIdentity(t *testing.T) {
	state := nltest.SampleState()
	state.SEID = nl.SEID{Value: "IBM-SYSZ-ISMSEID00000000", Enabled: true}
	state.LinkGroupsD = []nl.LinkGroupD{{ID: 5, GID: 1 << 63, PNETID: "NET3"}}
	state.DevicesD = []nl.Device{{UseCount: 1, Critical: true, PCI: &nl.PCI{FID: 9, Device: 0x04ed}}}
	for i := range 300 {
		g := state.LinkGroups[0]
		g.ID, g.Conns = nl.LinkGroupID(0x1000+i), uint32(i)
		state.LinkGroups = append(state.LinkGroups, g)
		l := state.Links[0]
		l.LinkGroup = g.ID
		state.Links = append(state.Links, l)
		c := state.Connections[1]
		c.Inode = uint64(5000 + i)
		state.Connections = append(state.Connections, c)
	}
	fake := nltest.NewFake(state)
	if err := fake.AddPNET(t.Context(), nl.PNET{ID: "NET1", NetDev: "eth0", IBDev: "srx_eth0"}); err != nil {
		t.Fatal(err)
	}
	got := everything(t, dial(t, serve(t, fake, nl.ServerConfig{})))
	if diff := cmp.Diff(everything(t, fake), got, sameAddr); diff != "" {
		t.Errorf("answers differ (-direct +over netlink):\n%s", diff)
	}
}

// TestErrors checks that errors match the same sentinels and keep their text.
func TestErrors(t *testing.T) {
	fake := nltest.NewFake(nltest.SampleState())
	fake.SetNetDevs("lo")
	c := dial(t, serve(t, fake, nl.ServerConfig{}))
	err := c.AddPNET(t.Context(), nl.PNET{ID: "NET1", NetDev: "foo"})
	if !errors.Is(err, os.ErrNotExist) || !errors.Is(err, syscall.ENODEV) {
		t.Errorf("unknown device: %v", err)
	}
	var op *nl.OpError
	if !errors.As(err, &op) || op.Object != "NET1" || op.ExtAck != "no network device foo" {
		t.Errorf("unknown device: %#v", op)
	}
	for _, want := range []error{os.ErrPermission, os.ErrNotExist, os.ErrExist, os.ErrInvalid, nl.ErrNotSupported, syscall.ENOMEM} {
		fake.SetError(fmt.Errorf("somewhere: %w", want))
		if _, err := c.Devices(t.Context()); !errors.Is(err, want) {
			t.Errorf("%v arrives as %v", want, err)
		}
	}
	fake.SetError(errors.New("unforeseen"))
	if _, err := c.Stats(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Errorf("an unforeseen error arrives as %v", err)
	}
	// The connection can still be used.
	fake.SetError(nil)
	if _, err := c.Stats(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNoBackend(t *testing.T) {
	for _, address := range []string{"@smcr-test-nobody", filepath.Join(t.TempDir(), "nobody")} {
		if _, err := nl.DialUnix(t.Context(), address); !errors.Is(err, nl.ErrNoBackend) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	address := serve(t, nltest.NewFake(nltest.State{}), nl.ServerConfig{})
	if _, err := nl.ListenUnix(address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second listener: %v", err)
	}
}

// slowControl answers when the test tells it to, or when its context ends.
type slowControl struct {
	*nltest.Fake
	entered chan struct{}
}

func (s *slowControl) Devices(ctx context.Context) ([]nl.Device, error) {
	close(s.entered)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestSlowControl(t *testing.T) {
	t.Run("server gives up", func(t *testing.T) {
		s := &slowControl{nltest.NewFake(nltest.SampleState()), make(chan struct{})}
		c := dial(t, serve(t, s, nl.ServerConfig{RequestTimeout: 20 * time.Millisecond}))
		if _, err := c.Devices(t.Context()); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("Devices: %v", err)
		}
	})
	t.Run("client gives up", func(t *testing.T) {
		s := &slowControl{nltest.NewFake(nltest.SampleState()), make(chan struct{})}
		c := dial(t, serve(t, s, nl.ServerConfig{RequestTimeout: 200 * time.Millisecond}))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-s.entered
			cancel()
		}()
		if _, err := c.Devices(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Devices: %v", err)
		}
		// The late answer must not be taken for the answer to the next request.
		if eids, err := c.UEIDs(t.Context()); err != nil || len(eids) != 1 {
			t.Errorf("UEIDs: %v, %v", eids, err)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	c := dial(t, serve(t, nltest.NewFake(nltest.SampleState()), nl.ServerConfig{}))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if links, err := c.Links(t.Context()); err != nil || len(links) != 3 {
					t.Errorf("Links: %v, %v", links, err)
					return
				}
				if x, err := c.Connections(t.Context()); err != nil || len(x) != 3 {
					t.Errorf("Connections: %v, %v", x, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestMalformedRequests sends requests that no client sends. The server answers or closes
// the connection, and still serves other clients.
func TestMalformedRequests(t *testing.T) {
	testkind.System(t)
	address := serve(t, nltest.NewFake(nltest.SampleState()), nl.ServerConfig{})
	message := func(typ, flags uint16, data ...byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(16+len(data)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = binary.NativeEndian.AppendUint16(b, flags)
		return append(append(b, make([]byte, 8)...), data...)
	}
	// A request of SMC_GEN_NETLINK with attribute 1, the enterprise ID.
	ueid := func(cmd byte, id string) []byte {
		b := binary.NativeEndian.AppendUint16([]byte{cmd, 1, 0, 0}, uint16(4+len(id)))
		b = append(append(b, binary.NativeEndian.AppendUint16(nil, 1)...), id...)
		return message(0x23, 5, append(b, make([]byte, -len(b)&3)...)...)
	}
	padded := func(id string) string { return fmt.Sprintf("%-32s\x00", id) }
	const add, remove = 10, 11
	for _, x := range []struct {
		name  string
		send  []byte
		errno syscall.Errno // 0 means that the server closes the connection
	}{
		{"enterprise ID of other length", ueid(add, "A\x00"), syscall.EINVAL},
		{"enterprise ID with a NUL", ueid(add, "A\x00"+padded("")[2:]), syscall.EINVAL},
		{"enterprise ID of wrong characters", ueid(add, padded("lower")), syscall.EINVAL},
		{"no enterprise ID", message(0x23, 5, add, 1, 0, 0), syscall.EINVAL},
		{"no enterprise ID to remove", message(0x23, 5, remove, 1, 0, 0), syscall.EINVAL},
		{"enterprise ID to remove that cannot be one", ueid(remove, padded("lower")), syscall.ENOENT},
		{"enterprise ID that is there", ueid(add, padded("SMCV2-EXAMPLE-UEID")), syscall.EEXIST},
		{"short header", []byte{1, 2, 3}, 0},
		{"length beyond the datagram", binary.NativeEndian.AppendUint32(nil, 1<<30), 0},
		{"no generic netlink header", message(0x23, 1), syscall.EINVAL},
		{"unknown family", message(0x99, 1, 1, 1, 0, 0), syscall.ENOENT},
		{"unknown command", message(0x23, 0x301, 77, 1, 0, 0), syscall.EOPNOTSUPP},
		{"no dump flag", message(0x23, 1, 1, 1, 0, 0), syscall.EOPNOTSUPP},
		{"broken attribute", message(0x24, 1, 2, 1, 0, 0, 0xff, 0xff, 1, 0), syscall.EINVAL},
		{"short diag request", message(20, 0x301, 43), syscall.EINVAL},
		{"diag for another family", message(20, 0x301, append([]byte{2}, make([]byte, 51)...)...), syscall.ENOENT},
	} {
		t.Run(x.name, func(t *testing.T) {
			conn, err := net.Dial("unixpacket", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := conn.Write(x.send); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 4096)
			n, err := conn.Read(b)
			if x.errno == 0 {
				if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("answer: %x, %v", b[:n], err)
				}
				return
			}
			if err != nil || n < 20 {
				t.Fatalf("answer: %x, %v", b[:n], err)
			}
			if got := -int32(binary.NativeEndian.Uint32(b[16:])); got != int32(x.errno) {
				t.Errorf("errno %d, want %d (%v)", got, int(x.errno), x.errno)
			}
		})
	}
	if _, err := dial(t, address).SysInfo(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestServerClose checks that Close ends requests in progress and connections.
func TestServerClose(t *testing.T) {
	s := &slowControl{nltest.NewFake(nltest.SampleState()), make(chan struct{})}
	l, err := nl.ListenUnix(fmt.Sprintf("@smcr-test-%d/%s", os.Getpid(), t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	srv := nl.NewServer(s, nl.ServerConfig{})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	c := dial(t, l.Addr().String())
	go func() {
		<-s.entered
		srv.Close()
	}()
	if _, err := c.Devices(t.Context()); err == nil {
		t.Error("Devices of a server that closes: no error")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := srv.Serve(l); err != nil {
		t.Errorf("Serve after Close: %v", err)
	}
}

// TestReconnect restarts the server while a client has a connection.
func TestReconnect(t *testing.T) {
	address := fmt.Sprintf("@smcr-test-%d/%s", os.Getpid(), t.Name())
	var c *nl.Client
	for range 3 {
		l, err := nl.ListenUnix(address)
		if err != nil {
			t.Fatal(err)
		}
		s := nl.NewServer(nltest.NewFake(nltest.SampleState()), nl.ServerConfig{})
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		if c == nil {
			c = dial(t, address)
		}
		if eids, err := c.UEIDs(t.Context()); err != nil || len(eids) != 1 {
			t.Errorf("UEIDs: %v, %v", eids, err)
		}
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if _, err := c.UEIDs(t.Context()); !errors.Is(err, nl.ErrNoBackend) {
		t.Errorf("without server: %v", err)
	}
}

// TestMulti asks two stacks and checks the names in their rows.
func TestMulti(t *testing.T) {
	none := nltest.NewFake(nltest.State{})
	none.SetError(nl.ErrNotSupported)
	m := nl.Multi{
		{Name: "kernel", Control: nltest.NewFake(nltest.SampleState())},
		{Name: "none", Control: none},
		{Name: "user", Control: nltest.NewFake(nltest.SampleState())},
	}
	rows, err := nl.All(t.Context(), m, nl.Control.LinkGroups)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, r.Stack+" "+r.Value.ID.String())
	}
	want := []string{"kernel 00000100", "kernel 00000200", "user 00000100", "user 00000200"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if _, err := nl.All(t.Context(), m[1:2], nl.Control.LinkGroups); !errors.Is(err, nl.ErrNotSupported) {
		t.Errorf("no stack supports it: %v", err)
	}
}

// TestLiveStacks runs the suite on the stacks of this network namespace, if there are
// any. It changes them only if SMCR_INTEGRATION=1 is set.
func TestLiveStacks(t *testing.T) {
	for name, dial := range map[string]func(context.Context) (*nl.Client, error){"kernel": nl.DialKernel, "user": nl.DialUser} {
		t.Run(name, func(t *testing.T) {
			open := func(t *testing.T) nl.Control {
				c, err := dial(t.Context())
				if errors.Is(err, nl.ErrNoBackend) {
					t.Skip("no such stack here: modprobe smc smc_diag, or smcr serve")
				}
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			open(t).Close()
			opts := nltest.Options{ReadOnly: os.Getenv("SMCR_INTEGRATION") != "1"}
			devs, err := net.Interfaces()
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range devs {
				if d.Flags&net.FlagLoopback == 0 {
					opts.NetDev = d.Name
				}
			}
			nltest.RunControlSuite(t, open, opts)
		})
	}
}
