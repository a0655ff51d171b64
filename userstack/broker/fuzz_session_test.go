// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/internal/testing/socktest"
	"smcr/quota"
	"smcr/userstack/internal/rights"
	"smcr/userstack/internal/sockopt"
)

// fuzzService is a handler that does what the port of the connect says, and with a
// connection that was accepted, what the number of the connection says.
type fuzzService struct{ t testing.TB }

func (h fuzzService) Listen(_ context.Context, _ *Launcher, sock *Descriptor) error {
	return sockopt.Set(sock, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, []byte{1, 0, 0, 0})
}

func (h fuzzService) Connect(ctx context.Context, c *Conn, sock *Descriptor, req ConnectRequest) {
	defer sock.Close()
	c.SetData(sock)
	how := req.Remote.Port()
	switch how % 8 {
	case 0:
		_ = c.NotCandidate("test")
		return
	case 1:
		_ = c.Failed(syscall.ECONNREFUSED, "test")
		return
	case 2:
		_ = c.Established(ctx, false)
		return
	case 3:
		h.local(ctx, c)
		return
	case 4:
		return // without an answer
	}
	if c.Established(ctx, true) != nil {
		return
	}
	mode := ModeSMCR
	if how%8 == 5 {
		mode = ModeTCP
	}
	end, err := c.Ready(ctx, mode, "test")
	h.carry(ctx, c, end, err, how>>3)
}

func (h fuzzService) Accept(ctx context.Context, c *Conn, sock *Descriptor) {
	defer sock.Close()
	c.SetData(sock)
	switch c.ID() % 4 {
	case 0:
		_ = c.NotCandidate("test")
		return
	case 1:
		h.local(ctx, c)
		return
	}
	end, err := c.TakeOver(ctx)
	if err == nil {
		_, _ = c.Ready(ctx, ModeSMCR, "")
	}
	h.carry(ctx, c, end, err, uint16(c.ID()))
}

// local gives the program an end of a pair, and waits for the program or for a detour.
func (h fuzzService) local(ctx context.Context, c *Conn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.t.Error(err)
		return
	}
	end := NewDescriptor(fds[0])
	defer end.Close()
	defer unix.Close(fds[1])
	if placed, err := c.Local(ctx, end); err == nil && placed {
		_ = end.Close()
		brief(ctx)
	}
}

// carry is what a service does with its end of a pair.
func (h fuzzService) carry(ctx context.Context, c *Conn, end *Descriptor, err error, how uint16) {
	if end == nil || err != nil {
		return
	}
	finish := func() {
		_ = end.Control(MarkUnread)
		_ = end.Close()
	}
	if how&1 != 0 { // the engine carries the bytes
		done := c.Keep()
		go func() {
			defer done()
			defer finish()
			brief(ctx)
		}()
		return
	}
	defer finish()
	_ = end.Control(func(fd int) error { _, err := unix.Write(fd, []byte("x")); return err })
	if how&2 != 0 {
		_ = c.DropUrgent(ctx)
	}
	if how&4 != 0 {
		_ = c.Broken(ctx, syscall.ECONNRESET)
	}
	release := c.Retain()
	brief(ctx)
	release()
	c.SetCarried(uint64(how))
}

// brief lets the peer act meanwhile.
func brief(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Millisecond):
	}
}

func (h fuzzService) SetOption(_ context.Context, c *Conn, _ rights.Rights, level, name int, value []byte) error {
	sock, ok := c.Data().(*Descriptor)
	if !ok || level == unix.SOL_SOCKET && name == unix.SO_LINGER {
		return syscall.ENOTCONN
	}
	return sockopt.Set(sock, level, name, value)
}

func (h fuzzService) GetOption(_ context.Context, c *Conn, _ rights.Rights, level, name, size int) ([]byte, error) {
	sock, ok := c.Data().(*Descriptor)
	if !ok {
		return nil, syscall.ENOTCONN
	}
	return sockopt.Get(sock, level, name, size)
}

func (h fuzzService) Decline(_ context.Context, c *Conn, sock *Descriptor, why error) {
	defer sock.Close()
	_ = c.NotCandidate(why.Error())
}

func (h fuzzService) Divert(ctx context.Context, c *Conn, former, end *Descriptor) {
	brief(ctx)
	_ = former.Close()
	_ = end.Close()
}

func (h fuzzService) Noted(*Launcher, []Note) {}

// descriptorKinds make descriptors of all kinds. Each returns -1 if the machine has none.
var descriptorKinds = []func(own int) int{
	func(int) int { return sock(unix.AF_INET, unix.SOCK_STREAM) },
	func(int) int { return sock(unix.AF_INET, unix.SOCK_STREAM) },
	func(int) int { return sock(unix.AF_INET6, unix.SOCK_STREAM) },
	func(int) int { return end(unix.SOCK_STREAM) },
	func(int) int { return end(unix.SOCK_STREAM) },
	func(int) int { return end(unix.SOCK_DGRAM) },
	func(int) int { return end(unix.SOCK_SEQPACKET) },
	func(int) int { return sock(unix.AF_INET, unix.SOCK_DGRAM) },
	func(int) int { return sock(unix.AF_NETLINK, unix.SOCK_RAW) },
	func(int) int { return sock(unix.AF_PACKET, unix.SOCK_RAW) },
	func(int) int { return sock(unix.AF_VSOCK, unix.SOCK_STREAM) },
	func(int) int { // listens
		fd := sock(unix.AF_INET, unix.SOCK_STREAM)
		_ = unix.Listen(fd, 1)
		return fd
	},
	func(int) int { // connected
		l := sock(unix.AF_INET, unix.SOCK_STREAM)
		defer unix.Close(l)
		_ = unix.Listen(l, 1)
		fd := sock(unix.AF_INET, unix.SOCK_STREAM)
		if sa, err := unix.Getsockname(l); err == nil {
			_ = unix.Connect(fd, sa)
		}
		return fd
	},
	func(int) int { // has unread data, and a descriptor in its queue
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1
		}
		defer unix.Close(fds[1])
		_ = unix.Sendmsg(fds[1], []byte("x"), unix.UnixRights(fds[0]), nil, unix.MSG_DONTWAIT)
		return fds[0]
	},
	func(own int) int { return dup(own) },
	func(int) int { // a regular file
		fd, err := unix.Open(os.TempDir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		return or(fd, err)
	},
	func(int) int { return or(unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)) },
	func(int) int { return or(unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)) },
	func(int) int { return or(unix.MemfdCreate("smcr", unix.MFD_CLOEXEC)) },
	func(int) int { return or(unix.Eventfd(0, unix.EFD_CLOEXEC)) },
	func(int) int { return or(unix.EpollCreate1(unix.EPOLL_CLOEXEC)) },
	func(int) int { return or(unix.PidfdOpen(os.Getpid(), 0)) },
	func(int) int { return pipeEnd(0) },
	func(int) int { return pipeEnd(1) },
}

func or(fd int, err error) int {
	if err != nil {
		return -1
	}
	return fd
}

func dup(fd int) int { return or(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)) }

func sock(family, typ int) int { return or(unix.Socket(family, typ|unix.SOCK_CLOEXEC, 0)) }

func end(typ int) int {
	fds, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	_ = unix.Close(fds[1])
	return fds[0]
}

func pipeEnd(i int) int {
	var p [2]int
	if unix.Pipe2(p[:], unix.O_CLOEXEC) != nil {
		return -1
	}
	_ = unix.Close(p[1-i])
	return p[i]
}

// fuzzLauncher is the hostile end of a session.
type fuzzLauncher struct {
	t  testing.TB
	fd int
}

// fuzzStepLen is how many bytes of the fuzzer belong to a message, so that a change in one
// message does not change what the next ones mean.
const fuzzStepLen = 12

// launcherTypes are the types of message that a launcher may send, and what a launcher must
// not send.
var launcherTypes = []Type{
	TypeListen, TypeConnect, TypeConnect, TypeConnect, TypeAccept, TypeAccept, TypeProceed, TypeProceed, TypeAttach, TypeAttach,
	TypeRelease, TypeCancel, TypeSetOption, TypeGetOption, TypeBrokenDone, TypeUrgentDropped, TypeNote, TypeDetour, TypeHello, TypeReady, 77,
}

// step sends what b says. It reports whether the session may go on.
func (l *fuzzLauncher) step(b [fuzzStepLen]byte) bool {
	m := Message{
		Type: launcherTypes[int(b[0])%len(launcherTypes)], Flags: Flags(b[1] & 3), Seq: uint32(b[1] >> 2), Conn: uint64(b[2] % 5),
		Level: int32(b[3] % 8), Name: int32(b[4]), Size: uint32(b[5]),
		Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(b[6])),
		Text:   "text"[:b[7]%5], Value: make([]byte, int(b[7]/5)),
	}
	if m.Type == TypeNote {
		m.Value = AppendNotes(nil, slices.Repeat([]Note{{Cookie: 1, Reason: NoteReason(b[7] % 5)}}, int(b[5]%4)))
	}
	raw, err := m.AppendBinary(nil)
	if err != nil {
		l.t.Fatal(err)
	}
	switch b[8] {
	case 255:
		raw = raw[:int(b[9])%len(raw)]
	case 254:
		raw[int(b[9])%len(raw)] ^= b[10]
	case 253:
		raw = append(raw, make([]byte, int(b[9])*16)...)
	case 252:
		return unix.Shutdown(l.fd, unix.SHUT_WR) == nil
	}
	var fds []int
	want := 0
	if m.Type.carriesSocket() {
		want = 1
	}
	switch b[10] {
	case 255:
		want++
	case 254:
		want = 0
	case 253:
		want = int(b[11]) % 8
	}
	for i := range want {
		kind := int(b[11]) + i
		if b[10] < 240 { // mostly such as the message may have
			kind = 0
			if m.Type == TypeAttach || m.Type == TypeDetour {
				kind = 3
			}
		}
		if fd := descriptorKinds[kind%len(descriptorKinds)](l.fd); fd >= 0 {
			fds = append(fds, fd)
		}
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	err = unix.Sendmsg(l.fd, raw, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	l.settle(b[9]&3 == 0)
	return err == nil
}

// settle reads what the service has sent. If wait is set, it gives the service the time for
// an answer.
func (l *fuzzLauncher) settle(wait bool) {
	buf, oob := make([]byte, MaxMessage), make([]byte, unix.CmsgSpace(4))
	timeout := 0
	if wait {
		timeout = 1
	}
	p := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(p, timeout); n <= 0 || err != nil {
			return
		}
		n, oobn, _, _, err := unix.Recvmsg(l.fd, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if n <= 0 || err != nil {
			return
		}
		fds, _ := parseRights(oob[:oobn])
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		timeout = 0
	}
}

// FuzzSession has a launcher send messages in any order, with descriptors of any kind and
// number, and end the session. The service must not panic, must end the session, and must
// have closed all descriptors and given back the quota of the launcher.
func FuzzSession(f *testing.F) {
	for seed := range byte(40) {
		r := rand.NewChaCha8([32]byte{seed})
		b := make([]byte, 20*fuzzStepLen)
		_, _ = r.Read(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		before := socktest.OpenFiles(t)
		var panics atomic.Int32
		budget, uid, most := quota.New(quota.Limits{Total: 1000}), uint32(os.Getuid()), 1000
		for budget.Take(uid, most) != nil {
			most--
		}
		budget.Give(uid, most)
		srv := &Server{Handler: fuzzService{t}, Guard: &guard.Guard{Count: func() { panics.Add(1) }}, Quota: budget}
		launcher, service := sessionPair(t)
		file, err := launcher.File()
		if err != nil {
			t.Fatal(err)
		}
		_ = launcher.Close()
		l := &fuzzLauncher{t, int(file.Fd())}
		ended := make(chan error, 1)
		go func() { ended <- srv.ServeConn(t.Context(), service) }()
		hello := Message{Type: TypeHello, Size: Version, Text: "program"}
		if len(in) == 0 || in[0] < 250 {
			raw, _ := hello.AppendBinary(nil)
			_ = unix.Sendmsg(l.fd, raw, nil, nil, 0)
			l.settle(true)
		}
		for n := 0; len(in) > 0 && n < 50; n++ {
			var b [fuzzStepLen]byte
			in = in[copy(b[:], in):]
			if !l.step(b) {
				break
			}
		}
		_ = file.Close()
		select {
		case err = <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the session does not end")
		}
		if n := panics.Load(); n != 0 {
			t.Fatalf("%d panics, the session ended with %v", n, err)
		}
		wrong := ""
		for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Microsecond) {
			switch n := socktest.OpenFiles(t); {
			case n > before:
				wrong = fmt.Sprintf("%d descriptors are open, %d were", n, before)
			case !srv.idle():
				wrong = "a session is counted"
			default:
				wrong = ""
			}
			if wrong == "" {
				break
			}
		}
		if wrong != "" {
			t.Fatalf("the session has ended with %v: %s", err, wrong)
		}
		if err := budget.Take(uid, most); err != nil {
			t.Fatalf("the quota was not given back: %v", err)
		}
	})
}

// idle reports whether no session is counted.
func (s *Server) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions) == 0 && len(s.notClosed) == 0
}
