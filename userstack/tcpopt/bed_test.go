// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
	"smcr/internal/testing/netnstest"
	"smcr/userstack/wire"
)

// ioTimeout bounds each connect, accept and read of a test.
const ioTimeout = 10 * time.Second

// bed has two hosts, client A and server B, with the program attached.
type bed struct {
	testing.TB
	*netnstest.Pair
	prog *Program
}

func newBed(t testing.TB) *bed {
	t.Helper()
	b := &bed{TB: t, Pair: netnstest.New(t, netnstest.Options{})}
	b.prog = attach(t, Options{})
	return b
}

func attach(t testing.TB, o Options) *Program {
	t.Helper()
	p, err := Attach(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// must fails the test if err is not nil.
func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// socket opens a TCP socket on a host. It is closed at the end of the test.
func (b *bed) socket(h *netnstest.Host, family int) int {
	b.Helper()
	fd := -1
	b.must(h.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	}))
	b.own(fd)
	return fd
}

// own closes fd at the end of the test, and sets its timeouts.
func (b *bed) own(fd int) {
	b.Helper()
	b.Cleanup(func() { unix.Close(fd) })
	tv := unix.NsecToTimeval(ioTimeout.Nanoseconds())
	b.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	b.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
}

func sockaddr(family int, ap netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
}

// bind binds a new socket of a host to an address.
func (b *bed) bind(h *netnstest.Host, family int, addr string, port int) int {
	b.Helper()
	fd := b.socket(h, family)
	b.must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	b.must(unix.Bind(fd, sockaddr(family, netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port)))))
	return fd
}

// listener returns a listening socket of host B. If marked, it is marked before listen.
func (b *bed) listener(family int, addr string, port int, marked bool) int {
	b.Helper()
	fd := b.bind(b.B, family, addr, port)
	if marked {
		b.must(b.prog.MarkListen(fd))
	}
	b.must(unix.Listen(fd, 512))
	return fd
}

func localPort(t testing.TB, fd int) int {
	t.Helper()
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return sa.Port
	case *unix.SockaddrInet6:
		return sa.Port
	}
	t.Fatalf("socket name %T", sa)
	return 0
}

// conn is a connection between the hosts.
type conn struct {
	client, server         int // descriptors
	clientPort, serverPort int
}

// connect connects client, a socket of host A, to the listener.
func (b *bed) connect(client, listener int, family int, addr string) conn {
	b.Helper()
	c := conn{client: client, serverPort: localPort(b, listener)}
	b.must(connectTo(client, sockaddr(family, netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(c.serverPort)))))
	c.clientPort = localPort(b, client)
	c.server = b.accept(listener)
	return c
}

func (b *bed) accept(listener int) int {
	b.Helper()
	fd, _ := b.acceptFrom(listener)
	return fd
}

// acceptFrom is accept that also returns the client's address.
func (b *bed) acceptFrom(listener int) (fd int, from unix.Sockaddr) {
	b.Helper()
	b.must(retry.Interrupted(func() (err error) {
		fd, from, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
		return err
	}))
	b.own(fd)
	return fd, from
}

func connectTo(fd int, to unix.Sockaddr) error {
	return retry.Interrupted(func() error { return unix.Connect(fd, to) })
}

// read reads once, at most 100 bytes.
func (b *bed) read(fd int) string {
	b.Helper()
	var n int
	buf := make([]byte, 100)
	b.must(retry.Interrupted(func() (err error) {
		n, err = unix.Read(fd, buf)
		return err
	}))
	return string(buf[:n])
}

// dial connects a new IPv4 socket to the listener on host B. If marked, the socket is
// marked.
func (b *bed) dial(listener int, marked bool) conn {
	b.Helper()
	fd := b.socket(b.A, unix.AF_INET)
	if marked {
		b.must(b.prog.MarkConnect(fd))
	}
	return b.connect(fd, listener, unix.AF_INET, b.B.Addr())
}

// exchange sends a message in each direction, to show that the connection works.
func (b *bed) exchange(c conn) {
	b.Helper()
	for _, way := range [][2]int{{c.client, c.server}, {c.server, c.client}} {
		msg := "hello from " + strconv.Itoa(way[0])
		if _, err := unix.Write(way[0], []byte(msg)); err != nil {
			b.Fatal(err)
		}
		if got := b.read(way[1]); got != msg {
			b.Fatalf("got %q, want %q", got, msg)
		}
	}
}

// wantPeer checks the state that the program reports for a socket. The value unmarked
// means ErrNotMarked.
func (b *bed) wantPeer(who string, fd int, want State) {
	b.Helper()
	got, err := b.prog.Peer(fd)
	if want == unmarked {
		if !errors.Is(err, ErrNotMarked) {
			b.Errorf("peer of the %s: got %v, %v, want ErrNotMarked", who, got, err)
		}
		return
	}
	if err != nil || got != want {
		b.Errorf("peer of the %s: got %v, %v, want %v", who, got, err, want)
	}
}

const unmarked State = 99

// segment is a captured TCP segment.
type segment struct {
	src, dst int
	syn, ack bool
	seq      uint32
	options  []byte
}

// announces returns how often the option is in the segment.
func (s segment) announces() int {
	return bytes.Count(s.options, wire.AppendTCPOption(nil))
}

// segments ends a capture and returns its TCP segments, decoded by tshark.
func (b *bed) segments(c *netnstest.Capture) []segment {
	b.Helper()
	netnstest.Require(b, "tshark")
	dropped, err := c.Stop()
	b.must(err)
	if dropped != 0 {
		b.Fatalf("the capture lacks %d packets", dropped)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "tshark", "-n", "-r", c.File, "-Y", "tcp", "-T", "fields",
		"-e", "tcp.srcport", "-e", "tcp.dstport", "-e", "tcp.flags", "-e", "tcp.seq_raw", "-e", "tcp.options")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		b.Fatalf("tshark: %v: %s", err, stderr.String())
	}
	var segs []segment
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 5 {
			b.Fatalf("tshark line %q", line)
		}
		var s segment
		s.src, _ = strconv.Atoi(f[0])
		s.dst, _ = strconv.Atoi(f[1])
		flags, err := strconv.ParseUint(f[2], 0, 16)
		b.must(err)
		seq, err := strconv.ParseUint(f[3], 10, 32)
		b.must(err)
		s.seq = uint32(seq)
		s.syn, s.ack = flags&2 != 0, flags&16 != 0
		s.options, err = hex.DecodeString(strings.ReplaceAll(f[4], ":", ""))
		b.must(err)
		segs = append(segs, s)
	}
	return segs
}

// announced reports whether the SYNs and the SYN-ACKs of a connection have the option. No
// other segment may have it. A retransmission, which a busy machine can cause, must be
// like the original.
func announced(t testing.TB, segs []segment, c conn) (syn, synAck bool) {
	t.Helper()
	seen := map[bool]int{}
	for _, s := range segs {
		fromClient := s.src == c.clientPort && s.dst == c.serverPort
		fromServer := s.src == c.serverPort && s.dst == c.clientPort
		n := s.announces()
		switch {
		case !fromClient && !fromServer:
		case !s.syn:
			if n != 0 {
				t.Errorf("port %d: option in a segment without SYN: % x", c.clientPort, s.options)
			}
		default:
			if before, ok := seen[s.ack]; ok && before != n {
				t.Errorf("port %d: a retransmitted SYN (ACK %v) has the option %d times, the first %d times", c.clientPort, s.ack, n, before)
			}
			if n > 1 {
				t.Errorf("port %d: option %d times in % x", c.clientPort, n, s.options)
			}
			seen[s.ack] = n
		}
	}
	if len(seen) != 2 {
		t.Errorf("port %d to %d: SYN or SYN-ACK not captured", c.clientPort, c.serverPort)
	}
	return seen[false] != 0, seen[true] != 0
}

// wantAnnounced checks which end has announced SMC-R in the captured segments.
func wantAnnounced(t testing.TB, segs []segment, what string, c conn, wantSYN, wantSYNACK bool) {
	t.Helper()
	syn, synAck := announced(t, segs, c)
	if syn != wantSYN || synAck != wantSYNACK {
		t.Errorf("%s: option on SYN %v, SYN-ACK %v, want %v, %v", what, syn, synAck, wantSYN, wantSYNACK)
	}
}

// sysctl writes a setting of the network namespace of a host.
func (b *bed) sysctl(h *netnstest.Host, name, value string) {
	b.Helper()
	b.must(h.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }))
}

// listeners returns the number of marked listeners that the program knows.
func (b *bed) listeners() (all int) {
	b.Helper()
	var key [listenerKeySize]byte
	var value [countSize]byte
	it := b.prog.objs.listeners.Iterate()
	for it.Next(&key, &value) {
		n := int(int32(binary.NativeEndian.Uint32(value[countN:])))
		if n <= 0 || [listenerKeySize]byte(value[countKey:]) != key {
			b.Errorf("listener %x counted %d times, of %x", key, n, value[countKey:])
		}
		all += n
	}
	b.must(it.Err())
	return all
}

// decodeHandshake returns an element of the map of handshakes.
func decodeHandshake(b []byte) handshake {
	e := binary.NativeEndian
	return handshake{e.Uint32(b), e.Uint32(b[4:]), e.Uint64(b[8:]), e.Uint64(b[16:]), e.Uint64(b[24:])}
}

// handshakes returns the elements of half-open connections, and their indices.
func (b *bed) handshakes() map[uint32]handshake {
	b.Helper()
	found := map[uint32]handshake{}
	var (
		i     uint32
		value [shakeSize]byte
	)
	it := b.prog.objs.handshakes.Iterate()
	for it.Next(&i, &value) {
		if h := decodeHandshake(value[:]); h.Cookie != 0 {
			found[i] = h
		}
	}
	b.must(it.Err())
	return found
}

// privateCgroup moves the process into a new cgroup for the time of the test, so that its
// sockets differ from all others. It returns the path of the cgroup.
func privateCgroup(t testing.TB) string {
	t.Helper()
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mounts, err := parseMountInfo(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) == 0 {
		t.Skip("needs a mounted cgroup v2: mount -t cgroup2 none /sys/fs/cgroup/unified")
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	before := ""
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			before = mounts[0].point + strings.TrimSpace(path)
		}
	}
	dir := fmt.Sprintf("%s/smcr-tcpopt-%d", mounts[0].point, os.Getpid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	pid := []byte(strconv.Itoa(os.Getpid()))
	t.Cleanup(func() {
		err := os.WriteFile(before+"/cgroup.procs", pid, 0)
		// Children that have just ended may still be in the cgroup.
		for range 100 {
			if rerr := os.Remove(dir); rerr == nil || err != nil {
				break
			}
			time.Sleep(10 * time.Millisecond) // Real time: the kernel does not say when a cgroup is empty.
		}
		if _, serr := os.Stat(dir); serr == nil {
			t.Errorf("cgroup %s is left behind (%v)", dir, err)
		}
	})
	if err := os.WriteFile(dir+"/cgroup.procs", pid, 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

// disconnect ends the connection of a TCP socket (connect(2), AF_UNSPEC).
func (b *bed) disconnect(fd int) {
	b.Helper()
	var sa unix.RawSockaddr // the zero value is AF_UNSPEC
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	if errno != 0 {
		b.Fatal(errno)
	}
}

// close closes a connection before the test ends. /dev/null takes the number of the
// descriptor, so that the cleanup does not close another file.
func (b *bed) close(fd int) {
	b.Helper()
	null, err := os.Open(os.DevNull)
	b.must(err)
	defer null.Close()
	b.must(unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC))
}

// markListening marks a socket that already listens. It skips the test if the kernel
// cannot do this.
func (b *bed) markListening(fd int) {
	b.Helper()
	err := b.prog.MarkListen(fd)
	if errors.Is(err, ErrListening) {
		if _, perr := b.prog.Peer(fd); !errors.Is(perr, ErrNotMarked) {
			b.Errorf("a failed MarkListen leaves a mark: %v", perr)
		}
		if n := b.listeners(); n != 0 {
			b.Errorf("a failed MarkListen leaves %d listeners", n)
		}
		b.Skipf("%v: boot Linux 6.12", err)
	}
	b.must(err)
}
