// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fuzzCallLen is how many bytes of the fuzzer belong to a call, so that a change in one call
// does not change what the next ones mean.
const fuzzCallLen = 10

// Numbers of the descriptors of probeCalls, and of those that are open at most.
const (
	callsFirstFD = 100
	callsFDs     = 12
	callsMaxFD   = 200
)

// Memory that calls use: guards, between them what the calls may change, and behind them a
// page that can only be read and one that is not mapped. A call writes no more than
// callsSlack bytes behind an address.
const (
	callsPage  = 4096
	callsUsed  = 3 * callsPage
	callsSlack = 2 * callsPage
	callsGuard = 0xa5
)

// What the other thread does.
const (
	disturbOff uint32 = iota
	disturbAsked
	disturbOn
)

// caller makes the calls of probeCalls.
type caller struct {
	mem       []byte
	addrs     [][]byte // socket addresses that connect uses
	tid       int
	disturb   atomic.Uint32 // whether the other thread disturbs the calls
	quiet     chan struct{} // the other thread has stopped
	listening netip.AddrPort
}

// probeCalls makes the calls that it reads from its input: frames of a length, in two bytes,
// and calls of fuzzCallLen bytes. It answers each frame with a line: "ok", or what is wrong.
func probeCalls(args []string) error {
	mem, err := unix.Mmap(-1, 0, callsPage+callsUsed+callsPage+2*callsPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	read := mem[2*callsPage+callsUsed:]
	if err := unix.Mprotect(read[:callsPage], unix.PROT_READ); err != nil {
		return err
	}
	if err := unix.Mprotect(read[callsPage:], unix.PROT_NONE); err != nil {
		return err
	}
	c := &caller{mem: mem, quiet: make(chan struct{})}
	for _, a := range []string{args[0], args[1], "127.0.0.1:1", "[::1]:1"} {
		ap := netip.MustParseAddrPort(a)
		domain := unix.AF_INET
		if ap.Addr().Is6() {
			domain = unix.AF_INET6
		}
		c.addrs = append(c.addrs, appendSockaddr(nil, domain, ap))
	}
	c.addrs = append(c.addrs, make([]byte, 16), append([]byte{unix.AF_UNIX, 0}, "/nowhere"...))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1) // with SA_RESTART
	runtime.LockOSThread()
	c.tid = unix.Gettid()
	go c.disturber()
	in := bufio.NewReader(os.Stdin)
	for {
		var size [2]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return nil
		}
		b := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(in, b); err != nil {
			return err
		}
		if err := c.frame(b); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("ok")
	}
}

// frame makes the calls of a frame, with fresh sockets and fresh memory.
func (c *caller) frame(b []byte) error {
	for i := range c.mem[:2*callsPage+callsUsed] {
		c.mem[i] = callsGuard
	}
	if err := c.open(); err != nil {
		return err
	}
	defer func() {
		for fd := callsFirstFD; fd < callsMaxFD; fd++ {
			_ = unix.Close(fd)
		}
	}()
	for len(b) >= fuzzCallLen {
		c.call([fuzzCallLen]byte(b))
		b = b[fuzzCallLen:]
	}
	for _, guard := range [][]byte{c.mem[:callsPage], c.mem[callsPage+callsUsed:][:callsPage]} {
		if i := slices.IndexFunc(guard, func(b byte) bool { return b != callsGuard }); i >= 0 {
			return fmt.Errorf("somebody has written %#x to memory that no call has named", guard[i])
		}
	}
	return nil
}

// open opens the descriptors of a frame, at numbers that do not change.
func (c *caller) open() error {
	next := callsFirstFD
	put := func(fd int, err error) error {
		if err != nil {
			return err
		}
		if err := unix.Dup3(fd, next, unix.O_CLOEXEC); err != nil {
			return err
		}
		next++
		return unix.Close(fd)
	}
	tv := unix.NsecToTimeval(int64(20 * time.Millisecond))
	blocking := func(domain int) (int, error) {
		fd, err := unix.Socket(domain, unix.SOCK_STREAM, 0)
		if err == nil {
			err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
		}
		return fd, err
	}
	listener := func(open func() (int, error)) (int, error) {
		fd, err := open()
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 4))
		}
		return fd, err
	}
	socket := func(domain, typ int) func() (int, error) {
		return func() (int, error) { return unix.Socket(domain, typ, 0) }
	}
	for _, open := range [callsFDs - 2]func() (int, error){
		socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK),
		socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK),
		func() (int, error) { return blocking(unix.AF_INET) },
		func() (int, error) { return blocking(unix.AF_INET6) },
		socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_NONBLOCK),
		func() (int, error) { return listener(socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK)) },
		func() (int, error) { return listener(func() (int, error) { return blocking(unix.AF_INET) }) },
		socket(unix.AF_INET, unix.SOCK_DGRAM),
		socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK),
		func() (int, error) { return unix.Eventfd(0, 0) },
	} {
		if err := put(open()); err != nil {
			return err
		}
	}
	if sa, err := unix.Getsockname(callsFirstFD + 5); err == nil {
		c.listening = toAddrPort(sa)
	}
	return nil
}

// address returns an address of the memory: mostly one that a call may use.
func (c *caller) address(choice, at byte) uintptr {
	base := uintptr(unsafe.Pointer(&c.mem[0]))
	switch choice {
	case 255:
		return 0
	case 254:
		return base + 2*callsPage + callsUsed // can only be read
	case 253:
		return base + 3*callsPage + callsUsed // not mapped for any access
	case 252:
		return base + 3*callsPage + callsUsed - 4 // half of it is not
	case 251:
		return 1 << 63
	}
	return base + callsPage + uintptr(at)*16
}

// callKinds are the calls of the fuzzer: those that are trapped, some of them often, and
// others that change what the trapped calls find.
var callKinds = []int{
	unix.SYS_CONNECT, unix.SYS_CONNECT, unix.SYS_CONNECT, sysAccept, unix.SYS_ACCEPT4, unix.SYS_ACCEPT4, unix.SYS_LISTEN,
	unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME, unix.SYS_GETSOCKOPT, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_SETSOCKOPT,
	unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_EPOLL_CREATE1, unix.SYS_LANDLOCK_CREATE_RULESET,
	unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_IOCTL,
	callClose, callDup, callShutdown, callRead, callWrite, callWait, callConnectOwn,
}

const (
	callClose = -iota - 100
	callDup
	callShutdown
	callRead
	callWrite
	callWait
	callConnectOwn
)

// levels and names of socket options that the filter traps.
var callOptions = [][2]uintptr{
	{unix.SOL_SOCKET, unix.SO_ERROR}, {unix.SOL_SOCKET, unix.SO_DOMAIN}, {unix.SOL_SOCKET, unix.SO_PROTOCOL}, {unix.SOL_SOCKET, unix.SO_PEERCRED},
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.SOL_SOCKET, unix.SO_LINGER}, {unix.SOL_SOCKET, unix.SO_PRIORITY}, {unix.SOL_SOCKET, unix.SO_MARK},
	{unix.SOL_SOCKET, unix.SO_SNDBUF}, {unix.SOL_SOCKET, unix.SO_SNDBUFFORCE}, {unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.IPPROTO_TCP, unix.TCP_INFO},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_CONGESTION}, {unix.IPPROTO_TCP, tcpULP}, {unix.IPPROTO_TCP, tcpRepair},
	{unix.IPPROTO_IP, unix.IP_TOS}, {unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}, {unix.IPPROTO_IP, unix.IP_OPTIONS},
	{unix.SOL_SOCKET, unix.SO_PEERNAME}, {unix.SOL_SOCKET, unix.SO_PEERPIDFD}, {unix.SOL_SOCKET, unix.SO_COOKIE}, {unix.SOL_TLS, 1},
	{unix.IPPROTO_TCP, unix.TCP_SAVE_SYN}, {unix.IPPROTO_TCP, unix.TCP_SAVED_SYN}, {unix.IPPROTO_TCP, unix.TCP_ZEROCOPY_RECEIVE},
}

// callIoctls are requests that the filter traps. Those that change the host are not among
// them.
var callIoctls = []uintptr{
	unix.SIOCGIFADDR, unix.SIOCGIFNETMASK, unix.SIOCGARP, siocRTMSG, siocUnixFile, siocGSTAMPOld, unix.SIOCGSTAMP_NEW,
	unix.SIOCOUTQ, siocOUTQNSD,
}

// call makes one call. Its bytes say which, on what, and what happens meanwhile.
func (c *caller) call(b [fuzzCallLen]byte) {
	fd := uintptr(callsFirstFD + int(b[1])%callsFDs)
	if b[1] == 255 {
		fd = ^uintptr(0)
	}
	addr, size := c.address(b[2], b[3]), c.address(b[4], b[5])
	length := uint32(b[6])
	switch b[7] % 16 {
	case 0:
		length = 1 << 31
	case 1:
		length = callsSlack
	case 2:
		length = 0
	}
	sa := c.addrs[int(b[6])%len(c.addrs)]
	kind := callKinds[int(b[0])%len(callKinds)]
	// What the program has put into its memory before the call.
	if at := c.inside(size); at != nil {
		binary.NativeEndian.PutUint32(at, length)
	}
	if at := c.inside(addr); at != nil && kind != unix.SYS_GETSOCKOPT {
		copy(at, sa)
		if kind == unix.SYS_SETSOCKOPT {
			copy(at, []byte{b[7], 0, 0, 0, b[6], 0, 0, 0})
		}
		if kind == unix.SYS_RECVMSG {
			clear(at[:64])
			binary.NativeEndian.PutUint64(at[unsafe.Offsetof(unix.Msghdr{}.Iov):], uint64(addr)+64)
			binary.NativeEndian.PutUint64(at[unsafe.Offsetof(unix.Msghdr{}.Iovlen):], uint64(b[6]%4))
			binary.NativeEndian.PutUint64(at[64:], uint64(size))
			binary.NativeEndian.PutUint64(at[72:], uint64(length%callsPage))
		}
	}
	if addr == size {
		return // what would be there afterwards is no one's business
	}
	stop := c.disturbWith(b[8], b[9], fd, addr, size)
	defer stop()
	switch kind {
	case unix.SYS_CONNECT:
		if length < callsSlack {
			length = uint32(len(sa))
		}
		raw(kind, fd, addr, uintptr(length), 0, 0)
	case callConnectOwn:
		_ = unix.Connect(int(fd), &unix.SockaddrInet4{Port: int(c.listening.Port()), Addr: [4]byte{127, 0, 0, 1}})
	case sysAccept, unix.SYS_ACCEPT4:
		flags := uintptr(0)
		if kind == unix.SYS_ACCEPT4 && b[7]&1 != 0 {
			flags = unix.SOCK_NONBLOCK
		}
		if b[6]&1 == 0 {
			addr = 0
		}
		if n, ok := raw(kind, fd, addr, size, flags, 0); ok {
			_ = unix.Dup3(n, callsFirstFD+callsFDs-2+int(b[6]>>1)%2, unix.O_CLOEXEC)
			_ = unix.Close(n)
		}
	case unix.SYS_LISTEN:
		raw(kind, fd, uintptr(b[6]%3), 0, 0, 0)
	case unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME:
		raw(kind, fd, addr, size, 0, 0)
	case unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT:
		o := callOptions[int(b[6])%len(callOptions)]
		if kind == unix.SYS_GETSOCKOPT {
			raw(kind, fd, o[0], o[1], addr, size)
		} else {
			raw(kind, fd, o[0], o[1], addr, []uintptr{4, 4, 8, 8, 0, 1, 3000, 1 << 31}[b[7]%8])
		}
	case unix.SYS_SENDTO:
		raw(kind, fd, addr, uintptr(b[6]), unix.MSG_OOB|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0)
	case unix.SYS_SENDMSG:
		raw(kind, fd, addr, unix.MSG_OOB|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	case unix.SYS_SENDMMSG:
		raw(kind, fd, addr, 1, unix.MSG_OOB|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0)
	case unix.SYS_RECVFROM:
		raw(kind, fd, addr, uintptr(length), c.discards(b[7]), size)
	case unix.SYS_RECVMSG:
		raw(kind, fd, addr, c.discards(b[7]), 0, 0)
	case unix.SYS_IOCTL:
		raw(kind, fd, callIoctls[int(b[6])%len(callIoctls)], addr, 0, 0)
	case unix.SYS_EPOLL_CREATE1:
		if n, ok := raw(kind, 0, 0, 0, 0, 0); ok {
			ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT}
			_ = unix.EpollCtl(n, unix.EPOLL_CTL_ADD, int(fd), &ev)
			_ = unix.Dup3(n, callsFirstFD+callsFDs, unix.O_CLOEXEC)
			_ = unix.Close(n)
		}
	case unix.SYS_LANDLOCK_CREATE_RULESET:
		raw(kind, 1<<63, 16, 0, 0, 0) // memory with rules would make all later connections TCP
	case callClose:
		_ = unix.Close(int(fd))
	case callDup:
		_ = unix.Dup3(int(fd), callsFirstFD+int(b[6])%callsFDs, 0)
	case callShutdown:
		_ = unix.Shutdown(int(fd), int(b[6])%3)
	case callRead:
		_, _, _ = unix.Recvfrom(int(fd), make([]byte, 100), unix.MSG_DONTWAIT)
	case callWrite:
		_ = unix.Sendto(int(fd), make([]byte, int(b[6])*100), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	case callWait:
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
		_, _ = unix.Poll(p, int(b[6])%8)
	}
}

// discards returns flags with which a call that receives is trapped.
func (c *caller) discards(choice byte) uintptr {
	flags := uintptr(unix.MSG_TRUNC | unix.MSG_DONTWAIT)
	for i, f := range []uintptr{unix.MSG_PEEK, unix.MSG_WAITALL, unix.MSG_ERRQUEUE, unix.MSG_OOB} {
		if choice>>i&3 == 3 {
			flags |= f
		}
	}
	return flags
}

// inside returns the memory at addr if calls may write to it.
func (c *caller) inside(addr uintptr) []byte {
	base := uintptr(unsafe.Pointer(&c.mem[0]))
	if addr < base+callsPage || addr >= base+callsPage+callsUsed {
		return nil
	}
	return c.mem[addr-base : callsPage+callsUsed]
}

// raw makes a system call without telling Go's scheduler, as any program does.
func raw(nr int, a, b, c, d, e uintptr) (int, bool) {
	r, _, errno := unix.RawSyscall6(uintptr(nr), a, b, c, d, e, 0)
	return int(r), errno == 0
}

// disturbing is what the other thread does while a call waits.
type disturbing struct {
	kind, arg      byte
	fd, addr, size uintptr
}

var disturbings struct {
	sync.Mutex
	now disturbing
}

// disturbWith has the other thread change what the call uses, until stop returns.
func (c *caller) disturbWith(kind, arg byte, fd, addr, size uintptr) (stop func()) {
	if kind %= 16; kind == 0 || kind > 7 {
		return func() {}
	}
	disturbings.Lock()
	disturbings.now = disturbing{kind, arg, fd, addr, size}
	disturbings.Unlock()
	c.disturb.Store(disturbAsked)
	for c.disturb.Load() != disturbOn {
		runtime.Gosched()
	}
	return func() {
		c.disturb.Store(disturbOff)
		<-c.quiet
	}
}

// disturber is the other thread.
func (c *caller) disturber() {
	runtime.LockOSThread()
	for {
		for !c.disturb.CompareAndSwap(disturbAsked, disturbOn) {
			time.Sleep(20 * time.Microsecond)
		}
		disturbings.Lock()
		d := disturbings.now
		disturbings.Unlock()
		for turn := 0; c.disturb.Load() == disturbOn; turn++ {
			c.disturbOnce(d, turn)
		}
		_ = unix.Mprotect(c.mem[callsPage:callsPage+callsUsed], unix.PROT_READ|unix.PROT_WRITE)
		c.quiet <- struct{}{}
	}
}

func (c *caller) disturbOnce(d disturbing, turn int) {
	at := c.inside(d.addr)
	switch d.kind {
	case 1: // another length
		if size := c.inside(d.size); size != nil {
			binary.NativeEndian.PutUint32(size, []uint32{0, 16, callsSlack, 1 << 31, uint32(d.arg)}[turn%5])
		}
	case 2: // another address
		if at != nil {
			copy(at, c.addrs[(turn+int(d.arg))%len(c.addrs)])
		}
	case 3: // memory that cannot be used
		prot := unix.PROT_NONE
		if turn%2 == 0 {
			prot = unix.PROT_READ | unix.PROT_WRITE
		}
		_ = unix.Mprotect(c.mem[callsPage:callsPage+callsUsed], prot)
	case 4: // another descriptor
		_ = unix.Dup3(callsFirstFD+(int(d.arg)+turn)%callsFDs, int(d.fd), 0)
	case 5:
		_ = unix.Close(int(d.fd))
	case 6: // each signal repeats the call, so there must be an end
		if turn < 20 {
			_ = unix.Tgkill(os.Getpid(), c.tid, unix.SIGUSR1)
		}
		time.Sleep(200*time.Microsecond + time.Duration(d.arg)*4*time.Microsecond)
	case 7: // other bytes, of any kind
		if at != nil {
			for i := range at[:32] {
				at[i] = d.arg + byte(turn*i)
			}
		}
	}
}
