// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/internal/retry"
)

// Reasons why a socket of the program is TCP.
const (
	// ReasonNoAccess: the kernel refuses to say whose the process is.
	ReasonNoAccess = "no permission to access the process"
	// ReasonNoSocket: socket(2) for SMC failed.
	ReasonNoSocket = "the kernel did not create an SMC socket"
	// ReasonNetns: the supervisor cannot create a socket in the network namespace.
	ReasonNetns = "no privilege in the program's network namespace"
	// ReasonLandlock: a rule of Landlock would not apply to SMC sockets.
	ReasonLandlock = "a program has limited its connections with Landlock"
)

// Stats counts the TCP sockets that the program has asked for.
type Stats struct {
	SMC uint64            // that became SMC sockets
	TCP map[string]uint64 // that did not, by reason
}

// Supervisor answers the calls of a program.
type Supervisor struct {
	l      listener
	c      Config
	log    *slog.Logger
	guard  guard.Guard
	warned atomic.Bool // of sockets that cannot be made
	rules  atomic.Bool // see limitsNetwork

	mu    sync.Mutex
	stats Stats
}

// Supervise takes the listener of the program at the other end of sock, which may begin then. It returns nil if the program runs
// without.
func Supervise(sock int, c Config, log *slog.Logger) (*Supervisor, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	err := retry.Interrupted(func() (err error) {
		n, oobn, _, _, err = unix.Recvmsg(sock, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kernelsmc: %w", os.NewSyscallError("recvmsg", err))
	}
	if n == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		return nil, errSilent
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, errSilent
	}
	s := &Supervisor{l: listener(fds[0]), c: c, log: log, guard: guard.Guard{Log: log}, stats: Stats{TCP: map[string]uint64{}}}
	err = s.l.usable()
	if err == nil {
		err = os.NewSyscallError("sendto", unix.Sendto(sock, []byte{0}, unix.MSG_NOSIGNAL, nil))
	}
	if err != nil {
		_ = unix.Close(fds[0])
		return nil, fmt.Errorf("kernelsmc: %w", err)
	}
	return s, nil
}

// Serve answers calls until the last process that has the filter has ended.
func (s *Supervisor) Serve() error {
	err := s.l.serve(func(c *call) {
		if c.Nr == unix.SYS_LANDLOCK_CREATE_RULESET {
			go s.answer(c, s.ruleset) // to read memory of the program may take as long as it wants
			return
		}
		s.answer(c, s.socket)
	})
	if err != nil {
		return fmt.Errorf("kernelsmc: %w", err)
	}
	return nil
}

// Stats returns what was until now.
func (s *Supervisor) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{SMC: s.stats.SMC, TCP: maps.Clone(s.stats.TCP)}
}

// answer calls f, which answers a call. After a panic in f, the kernel does the call.
func (s *Supervisor) answer(c *call, f func(*call)) {
	if s.guard.Do("the answer to a system call", func() { f(c) }) != nil {
		s.cont(c) // too late if it has its answer
	}
}

// cont lets the kernel do the call.
func (s *Supervisor) cont(c *call) {
	if err := s.l.cont(c); err != nil && !gone(err) {
		s.log.Error("cannot answer a system call", "err", err)
	}
}

// native lets the call make the TCP socket that it asks for.
func (s *Supervisor) native(c *call, reason string) {
	s.mu.Lock()
	s.stats.TCP[reason]++
	s.mu.Unlock()
	s.cont(c)
}

// socket answers a call of socket(). If an SMC socket cannot be made, the program gets the TCP socket that it asked for.
func (s *Supervisor) socket(c *call) {
	domain, typ := int(int32(c.Args[0])), int(int32(c.Args[1]))
	const known = sockTypeMask | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	switch {
	case typ&^known != 0: // fails, as it should
		s.cont(c)
		return
	case c.PID == 0:
		s.native(c, ReasonNoAccess)
		return
	case s.rules.Load():
		s.native(c, ReasonLandlock)
		return
	}
	fd, reason, err := s.make(int(c.PID), domain, typ)
	if err != nil {
		if domain == unix.AF_INET6 && errors.Is(err, unix.EAFNOSUPPORT) {
			s.log.Debug("no IPv6 socket", "err", err)
		} else if !s.warned.Swap(true) {
			s.log.Warn("a socket of the program is plain TCP", "reason", reason, "err", err)
		}
		s.native(c, reason)
		return
	}
	defer unix.Close(fd)
	var e syscall.Errno
	switch err = s.l.place(c, fd, typ&unix.SOCK_CLOEXEC != 0); {
	case err == nil:
		s.mu.Lock()
		s.stats.SMC++
		s.mu.Unlock()
		s.log.Debug("a socket uses SMC", "pid", c.PID, "family", domain)
	case gone(err):
	case errors.As(err, &e) && (e == unix.EMFILE || e == unix.ENFILE || e == unix.ENOMEM): // the program's own limits
		if err := s.l.fail(c, e); err != nil && !gone(err) {
			s.log.Error("cannot answer a system call", "err", err)
		}
	default:
		s.log.Error("cannot hand over a socket", "err", err)
		s.native(c, ReasonNoAccess)
	}
}

// ruleset answers a call of landlock_create_ruleset().
func (s *Supervisor) ruleset(c *call) {
	if c.PID != 0 && limitsNetwork(c) && !s.rules.Swap(true) {
		s.log.Info("new sockets are plain TCP from now on: " + ReasonLandlock)
	}
	s.cont(c)
}

// limitsNetwork reports whether a ruleset may forbid connections. The kernel does not apply such rules to SMC sockets, and does not
// show which processes have them. So all sockets are TCP from then on, also if the memory of the program cannot be read.
func limitsNetwork(c *call) bool {
	const netEnd = 16                                           // handled_access_fs, handled_access_net
	if c.Args[0] == 0 || c.Args[1] < netEnd || c.Args[2] != 0 { // a query of the version, or a struct without network rules
		return false
	}
	f, err := os.Open("/proc/" + strconv.Itoa(int(c.PID)) + "/mem")
	if err != nil {
		return true
	}
	defer f.Close()
	attr := make([]byte, netEnd)
	_, err = f.ReadAt(attr, int64(c.Args[0]))
	return err != nil || binary.NativeEndian.Uint64(attr[8:]) != 0
}
