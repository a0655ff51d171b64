// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/sharetest"
	"smcr/internal/testing/testkind"
)

// newShiftBed returns a bed whose stacks decline, and let go of connections.
func newShiftBed(t *testing.T) *bed {
	b := newBed(t, splice)
	for _, d := range b.d {
		b.must(d.collect()) // its programs are at all devices
	}
	return b
}

// shifts returns how many connections a Diverter has let go.
func shifts(d *Diverter) (n int) {
	var key bpfTuple
	var by bpfShift
	for all := d.bpf.Shifts.Iterate(); all.Next(&key, &by); {
		n++
	}
	return n
}

// letGo waits until both stacks have nothing more of any connection, and n are let go.
func (b *bed) letGo(n int) {
	b.t.Helper()
	b.gone()
	for i, d := range b.d {
		if got := shifts(d); got != n {
			b.t.Errorf("host %d has let go of %d connections, want %d", i, got, n)
		}
	}
}

// exchange sends bytes both ways at once, until the end of both streams, and checks them.
func exchange(t *testing.T, size int, ends ...*net.TCPConn) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data)
	want := sha256.Sum256(data)
	var all sync.WaitGroup
	for _, c := range ends {
		all.Go(func() {
			_, err := c.Write(data)
			if err := errors.Join(err, c.CloseWrite()); err != nil {
				t.Errorf("%v writes: %v", c.LocalAddr(), err)
			}
		})
		all.Go(func() {
			h := sha256.New()
			n, err := io.Copy(h, c)
			if err != nil || n != int64(size) || !bytes.Equal(h.Sum(nil), want[:]) {
				t.Errorf("%v got %d bytes of %d, as sent: %v, %v", c.LocalAddr(), n, size, bytes.Equal(h.Sum(nil), want[:]), err)
			}
		})
	}
	all.Wait()
}

// TestShift has declined connections let go while they rest: the programs exchange bytes as before, also where packets are lost, and
// see the end of both streams.
func TestShift(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, test := range []struct {
		name       string
		v6         bool
		timestamps bool
		offload    bool
		loss       float64
		size       int
	}{
		{"IPv4", false, true, true, 0, 32 << 20},
		{"IPv6", true, true, true, 0, 32 << 20},
		{"no timestamps", false, false, true, 0, 32 << 20},
		{"checksums made by the kernel", true, true, false, 0, 4 << 20},
		{"loss", false, true, true, 0.02, 4 << 20},
		{"loss without timestamps", true, false, false, 0.02, 4 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newShiftBed(t)
			if !test.offload {
				b.noOffload()
			}
			address := b.B.Addr()
			if test.v6 {
				address = b.B.Addr6()
			}
			for _, h := range []*netnstest.Host{b.A, b.B} {
				if !test.timestamps {
					b.must(h.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte("0"), 0o644) }))
				}
			}
			client, server := b.connect(b.listen(address))
			b.exchanges(client, server)
			b.letGo(1)
			for _, h := range []*netnstest.Host{b.A, b.B} {
				b.must(h.SetLoss(0, test.loss))
			}
			b.exchanges(client, server)
			exchange(t, test.size, client, server)
			b.wantTaken(1, 1)
			for _, h := range []*netnstest.Host{b.A, b.B} {
				b.must(h.SetLoss(0, 0))
			}
			if test.loss == 0 {
				for i, h := range []*netnstest.Host{b.A, b.B} {
					n, err := h.Counters("PAWSEstab")
					b.must(err)
					if n["PAWSEstab"] > 2 { // those that were on the way when it was let go may be later than the first ones after it
						t.Errorf("host %d has dropped packets by their timestamps: %v", i, n)
					}
				}
			}
		})
	}
}

// noOffload has the devices of both hosts send packets whose checksums are made, none of which is larger than they are.
func (b *bed) noOffload() {
	b.t.Helper()
	for _, h := range []*netnstest.Host{b.A, b.B} {
		b.must(h.Do(func() error {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)

			if err != nil {
				return err
			}
			const setTxChecksum = 0x17 // ETHTOOL_STXCSUM
			v := [2]uint32{setTxChecksum, 0}
			var pin runtime.Pinner
			pin.Pin(&v)
			defer pin.Unpin()
			req := struct {
				name [unix.IFNAMSIZ]byte
				data *[2]uint32
				_    [8]byte
			}{data: &v}
			copy(req.name[:], h.Links[0].Name)
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
				return os.NewSyscallError("ioctl", errno)
			}
			return nil
		}))
	}
}

// TestShiftBusy has a connection let go that never rests.
func TestShiftBusy(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, way := range []string{"up", "down", "both", "both, checksums made by the kernel"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := newShiftBed(t)
			if strings.Contains(way, "checksums") {
				b.noOffload()
			}
			client, server := b.connect(b.listen(b.B.Addr()))
			stop := make(chan struct{})
			var all sync.WaitGroup
			pump := func(from, to *net.TCPConn) {
				sums := make(chan [32]byte, 1)
				all.Go(func() {
					h, r := sha256.New(), rand.NewChaCha8([32]byte{3})
					buf := make([]byte, 64<<10)
					for {
						select {
						case <-stop:
							b.must(from.CloseWrite())
							sums <- [32]byte(h.Sum(nil))
							return
						default:
						}
						_, _ = r.Read(buf)
						_, _ = h.Write(buf)
						if _, err := from.Write(buf); err != nil {
							t.Errorf("%v writes: %v", from.LocalAddr(), err)
							sums <- [32]byte{}
							return
						}
					}
				})
				all.Go(func() {
					h := sha256.New()
					if _, err := io.Copy(h, to); err != nil || <-sums != [32]byte(h.Sum(nil)) {
						t.Errorf("%v got other bytes, %v", to.LocalAddr(), err)
					}
				})
			}
			if way != "down" {
				pump(client, server)
			}
			if way != "up" {
				pump(server, client)
			}
			defer func() {
				close(stop)
				all.Wait()
			}()
			b.letGo(1)
		})
	}
}

// TestShiftOutlives has a connection that was let go outlive the stack, which the next one goes on with.
func TestShiftOutlives(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newShiftBed(t)
	client, server := b.connect(b.listen(b.B.Addr()))
	b.exchanges(client, server)
	b.letGo(1)
	for i := range b.d {
		b.must(b.d[i].Close())
		b.exchanges(client, server)
	}
	for i := range b.d {
		s := b.succeed(i, false)
		b.exchanges(client, server)
		b.must(s.Resume())
		b.must(s.collect())
		s.wantOnly(t)
		b.exchanges(client, server)
		b.d[i] = s.Diverter
	}
	b.letGo(1)
	exchange(t, 4<<20, client, server)
	client.Close()
	server.Close()
}

// TestShiftTakeover has a connection that was let go pass to another stack of both hosts that takes over.
func TestShiftTakeover(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, older := range []bool{false, true} {
		t.Run(fmt.Sprintf("older %v", older), func(t *testing.T) {
			t.Parallel()
			b := newShiftBed(t)
			client, server := b.connect(b.listen(b.B.Addr()))
			b.exchanges(client, server)
			b.letGo(1)
			for i := range b.d {
				s := b.succeed(i, older)
				b.exchanges(client, server)
				b.must(b.d[i].Drain())
				b.must(s.collect())
				b.exchanges(client, server)
				b.must(s.Resume())
				if b.d[i].owns() || !s.owns() {
					t.Errorf("host %d: the stack that takes over does not own what was let go", i)
				}
				b.exchanges(client, server)
				b.must(b.d[i].Close())
				b.exchanges(client, server)
				b.d[i] = s.Diverter
			}
			exchange(t, 4<<20, client, server)
		})
	}
}

// TestShiftReset has a program reset a connection that was let go: the other one sees that.
func TestShiftReset(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newShiftBed(t)
	l := b.listen(b.B.Addr())
	for i := range 2 {
		client, server := b.connect(l)
		ends := []*net.TCPConn{client, server}
		b.exchanges(client, server)
		b.gone()
		b.must(ends[i].SetLinger(0))
		ends[i].Close()
		if _, err := ends[1-i].Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("end %d is reset, and the other one sees %v", i, err)
		}
	}
	for i, d := range b.d {
		testkind.Eventually(t, "connections that have ended are forgotten", func() (any, bool) {
			n := shifts(d)
			return fmt.Sprint(i, n), n == 0
		})
	}
}

// TestShiftAgain has a new connection with the ports of one that was let go: it is taken as any other.
func TestShiftAgain(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newShiftBed(t)
	l := b.listen(b.B.Addr())
	client, server := b.connect(l)
	b.exchanges(client, server)
	b.letGo(1)
	from := client.LocalAddr().(*net.TCPAddr)
	b.must(client.SetLinger(0))
	client.Close()
	_, _ = server.Read(make([]byte, 1))
	server.Close()
	accepted := make(chan *net.TCPConn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c.(*net.TCPConn)
	}()
	b.must(b.A.Do(func() error {
		x, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", l.Addr().String())
		if err == nil {
			client = x.(*net.TCPConn)
		}
		return err
	}))
	defer client.Close()
	server = <-accepted
	defer server.Close()
	b.exchanges(client, server)
	b.wantTaken(2, 2)
	b.letGo(1)
	exchange(t, 1<<20, client, server)
}

// TestShiftsOfUsers: users who have as many declined connections pass as they can leave some for others.
func TestShiftsOfUsers(t *testing.T) {
	d := &Diverter{}
	take := func(uid uint32) bool {
		if !d.hasShift(uid) {
			return false
		}
		d.shifted.Add(uid)
		return true
	}
	if got := sharetest.Users(t, 24, take); got[0] != userShifts {
		t.Errorf("the first user has %d, want %d", got[0], userShifts)
	}
	if !take(0) {
		t.Error("nothing is left for root")
	}
}
