// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// Protocols of AF_SMC sockets (linux/smc.h): IPv4 or IPv6 below.
const (
	smcProtoSMC  = 0
	smcProtoSMC6 = 1
)

// ErrNoKernelSMC means that the kernel has no SMC sockets.
var ErrNoKernelSMC = errors.New("launch: the kernel has no SMC sockets (AF_SMC): try 'modprobe smc'")

// Kernel makes Run use the SMC of the kernel for the connections. Each socket()
// of the program and its descendants that asks for a TCP socket, or for a
// Multipath TCP one, gives an SMC socket; no other call is trapped. An SMC
// socket becomes plain TCP by itself if the peer has no SMC.
type Kernel struct {
	// Inet makes sockets with the address family of the program's call and
	// protocol IPPROTO_SMC, instead of AF_SMC sockets. Only SO_PROTOCOL shows
	// that such a socket is not TCP. It needs Linux 6.11.
	Inet bool
	// RcvBuf and SndBuf are set as SO_RCVBUF and SO_SNDBUF, in bytes; they
	// determine the sizes of RMB element and send buffer. With CAP_NET_ADMIN
	// they may exceed net.core.rmem_max and wmem_max. 0 leaves the default.
	RcvBuf, SndBuf int
}

// Probe makes an SMC socket and closes it. This makes the kernel load its
// module if there is one. The error matches ErrNoKernelSMC if the kernel has no
// such sockets.
func (k Kernel) Probe() error {
	fd, err := k.socket(unix.AF_INET, 0)
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ESOCKTNOSUPPORT):
		return fmt.Errorf("%w: %w", ErrNoKernelSMC, err)
	}
	return fmt.Errorf("launch: %w", os.NewSyscallError("socket AF_SMC", err))
}

// socket makes the SMC socket that takes the place of a TCP socket of domain
// AF_INET or AF_INET6. flags may have SOCK_NONBLOCK.
func (k Kernel) socket(domain, flags int) (int, error) {
	typ := unix.SOCK_STREAM | unix.SOCK_CLOEXEC | flags&unix.SOCK_NONBLOCK
	if k.Inet {
		return unix.Socket(domain, typ, unix.IPPROTO_SMC)
	}
	proto := smcProtoSMC
	if domain == unix.AF_INET6 {
		proto = smcProtoSMC6
	}
	return unix.Socket(unix.AF_SMC, typ, proto)
}

// setBuffers sets the buffer sizes that k asks for.
func (k Kernel) setBuffers(fd int) error {
	set := func(force, plain, size int) error {
		if size <= 0 || unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
			return nil
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
	return errors.Join(
		os.NewSyscallError("setsockopt SO_RCVBUF", set(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, k.RcvBuf)),
		os.NewSyscallError("setsockopt SO_SNDBUF", set(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, k.SndBuf)))
}

// kernelSupervisor answers the socket() calls of one filter tree with SMC
// sockets of the kernel. Making a socket does not block, so serve does it.
// Reading the program's memory may block, so goroutines do it.
type kernelSupervisor struct {
	l      *notify
	k      Kernel
	log    *slog.Logger
	stats  *counters
	stop   int         // eventfd that ends serve
	root   bool        // sockets may belong to other users
	warned atomic.Bool // of sockets that cannot be made
	rules  atomic.Bool // see limitsNetwork

	end   context.CancelFunc // of looks
	tasks tasks
}

func newKernelSupervisor(fd int, k Kernel, log *slog.Logger) (*kernelSupervisor, error) {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	ctx, end := context.WithCancel(context.Background())
	s := &kernelSupervisor{
		l: &notify{fd: fd, looks: newLooks(ctx)}, k: k, log: log, stats: newCounters(), stop: stop, root: os.Geteuid() == 0, end: end,
	}
	s.tasks.guard.Count = s.stats.panicked
	s.tasks.guard.Log, s.l.looks.guard = log, &s.tasks.guard
	s.l.syncWakeUp()
	return s, nil
}

func (s *kernelSupervisor) close() {
	s.end()
	s.tasks.wg.Wait()
	_ = unix.Close(s.stop)
}

func (s *kernelSupervisor) interrupt()      { wakeUp(s.stop) }
func (s *kernelSupervisor) snapshot() Stats { return s.stats.snapshot() }

// serve answers notifications until the last filtered task is gone.
func (s *kernelSupervisor) serve() error {
	// One thread, so that it has one network namespace.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return s.l.serve(s.stop, func(n *notif) bool {
		s.answerWith(n, func() { s.dispatch(n) })
		return true
	})
}

// dispatch answers n.
func (s *kernelSupervisor) dispatch(n *notif) {
	if n.Nr != unix.SYS_LANDLOCK_CREATE_RULESET {
		s.socket(n)
		return
	}
	s.tasks.wg.Go(func() {
		s.answerWith(n, func() {
			if n.PID != 0 && n.limitsNetwork() && !s.rules.Swap(true) {
				s.log.Info("new sockets are plain TCP from now on: " + ReasonLandlock)
			}
			s.answered(n.cont())
		})
	})
}

// answerWith calls f, which answers n. After a panic in f, the kernel does the call.
func (s *kernelSupervisor) answerWith(n *notif, f func()) {
	if s.tasks.guard.Do(callTask, f) != nil {
		s.answered(n.cont()) // too late if the call has its answer
	}
}

// socket answers one socket() call. If an SMC socket cannot be made, the
// program gets the TCP socket that it asked for.
func (s *kernelSupervisor) socket(n *notif) {
	domain, typ := int(int32(n.Args[0])), int(int32(n.Args[1]))
	const known = 0xf | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if typ&^known != 0 { // fails, as it should
		s.answered(n.cont())
		return
	}
	if n.PID == 0 { // a task that is not visible in the PID namespace of the launcher
		s.native(n, ReasonNoAccess)
		return
	}
	if s.rules.Load() {
		s.native(n, ReasonLandlock)
		return
	}
	fd, reason, err := s.make(n.tid(), domain, typ)
	if err != nil {
		if domain == unix.AF_INET6 && errors.Is(err, unix.EAFNOSUPPORT) {
			s.log.Debug("no IPv6 socket", "err", err)
		} else if !s.warned.Swap(true) {
			s.log.Warn("a socket of the program is plain TCP", "reason", reason, "err", err)
		}
		s.native(n, reason)
		return
	}
	defer unix.Close(fd)
	num, err := n.addAndReply(fd, -1, typ&unix.SOCK_CLOEXEC != 0)
	var e syscall.Errno
	switch {
	case err == nil:
		s.stats.kernelSocket()
		s.log.Debug("a socket uses SMC", "pid", n.PID, "fd", num, "family", domain)
	case isGone(err):
	case errors.As(err, &e) && (e == unix.EMFILE || e == unix.ENFILE || e == unix.ENOMEM):
		s.answered(n.fail(e)) // the program's own limits
	default:
		s.log.Error("cannot hand over a socket", "err", err)
		s.native(n, ReasonNoAccess)
	}
}

// native lets the call make the TCP socket it asks for.
func (s *kernelSupervisor) native(n *notif, reason string) {
	s.stats.nativeSocket(reason)
	s.answered(n.cont())
}

func (s *kernelSupervisor) answered(err error) {
	if err != nil && !isGone(err) {
		s.log.Error("cannot answer a system call", "err", err)
	}
}

// make makes the socket as thread tid would: in its network namespace, with its
// user as owner. The information about the thread may be that of another thread
// which has its number by now. Then the call is over, and no program gets the
// socket.
func (s *kernelSupervisor) make(tid, domain, flags int) (fd int, reason string, err error) {
	ns, err := netnsOf(strconv.Itoa(tid))
	if err != nil {
		return -1, ReasonNoAccess, err
	}
	o := launcherIDs()
	if s.root {
		if o, err = ownerOf(tid); err != nil {
			return -1, ReasonNoAccess, err
		}
	}
	fd = -1
	err = o.make(func() (err error) {
		switch own, err := netnsOf("thread-self"); {
		case err != nil:
			return err
		case own == ns:
			fd, err = s.k.socket(domain, flags)
			return err
		}
		return errElsewhere
	})
	if errors.Is(err, errElsewhere) {
		if fd, err = s.socketIn(tid, o, domain, flags); errors.Is(err, unix.EPERM) {
			return -1, ReasonNetns, err
		}
	}
	if err != nil {
		return -1, ReasonNoSocket, err
	}
	if err := s.k.setBuffers(fd); err != nil {
		s.log.Debug("cannot set the buffer sizes", "err", err)
	}
	return fd, "", nil
}

// errElsewhere means that a thread is in another network namespace than the
// launcher.
var errElsewhere = errors.New("launch: another network namespace")

// socketIn makes a socket owned by o in the network namespace of thread tid,
// which is not that of the launcher.
func (s *kernelSupervisor) socketIn(tid int, o owner, domain, flags int) (fd int, err error) {
	f, err := os.Open("/proc/" + strconv.Itoa(tid) + "/ns/net")
	if err != nil {
		return -1, err
	}
	defer f.Close()
	fd = -1
	guard.OnThread("a socket in another network namespace", func() (restored bool) {
		if err = os.NewSyscallError("setns", unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)); err != nil {
			return false
		}
		err, _ = o.make1(func() (err error) {
			fd, err = s.k.socket(domain, flags)
			return err
		})
		return false
	})
	return fd, err
}

// nsID identifies a namespace.
type nsID struct{ dev, ino uint64 }

// netnsOf returns the network namespace of a task. task is its directory in
// /proc.
func netnsOf(task string) (nsID, error) {
	var st unix.Stat_t
	name := "/proc/" + task + "/ns/net"
	if err := unix.Stat(name, &st); err != nil {
		return nsID{}, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return nsID{uint64(st.Dev), st.Ino}, nil
}
