// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/place"
	"smcr/userstack/attach"
	"smcr/userstack/divert"
)

// Config says how [Serve] works.
type Config struct {
	// Idle is how long it goes on after the end of the last program.
	Idle time.Duration
	// Needed, if set, reports whether it goes on after Idle all the same.
	Needed func() bool
	// Confine takes the rights away that are for the start only.
	Confine func()
	Log     *slog.Logger
}

// nowhere announces nothing: the stack does.
type nowhere struct{}

func (nowhere) Attach(uint64, divert.Does) error { return nil }
func (nowhere) Detach(uint64) error              { return nil }

// Serve answers who connects to l, which it closes at its end. It returns if there was nothing to do for Config.Idle.
func Serve(ctx context.Context, l *net.UnixListener, cfg Config) error {
	defer l.Close()
	top, err := cgroup.Top()
	if err != nil {
		return err
	}
	table, err := attach.New(attach.Config{Top: top, Namespace: attach.AnyNamespace, Boundary: nowhere{}, Log: cfg.Log})
	if err != nil {
		return err
	}
	defer table.Close()
	if cfg.Confine != nil {
		cfg.Confine()
	}
	if err := table.Find(); err != nil {
		return fmt.Errorf("cgroups of programs that run: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for ctx.Err() == nil {
		if err := l.SetDeadline(time.Now().Add(cfg.Idle)); err != nil && ctx.Err() == nil {
			return err
		}
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
			answer(c, table, cfg.Log)
		case errors.Is(err, os.ErrDeadlineExceeded):
			if len(table.Entries()) == 0 && (cfg.Needed == nil || !cfg.Needed()) {
				return nil
			}
		case errors.Is(err, net.ErrClosed):
		default: // too many open files, for example
			cfg.Log.Warn("cannot accept", "err", err)
			time.Sleep(pause)
		}
	}
	return nil
}

// pause is how long nothing is accepted after an error.
const pause = 100 * time.Millisecond

// answer has one process be in a cgroup of its own. It waits for nobody.
func answer(c *net.UnixConn, table *attach.Table, log *slog.Logger) {
	defer c.Close()
	who, err := peer(c)
	defer who.close()
	if err == nil {
		var e attach.Entry
		if e, err = table.Enter(&who.Process, false); err == nil {
			log.Debug("a program has a cgroup", "cgroup", e.Path, "user", e.UID)
		}
	}
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EPERM
	}
	if err != nil {
		log.Info("a program has no cgroup of its own", "user", who.UID, "pid", who.PID, "err", err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(pause)) // the buffer of a new connection is empty
	_, _ = c.Write(strconv.AppendInt(nil, int64(errno), 10))
}

// caller is a process that has connected.
type caller struct{ attach.Process }

func (p caller) close() {
	if p.FD >= 0 {
		unix.Close(p.FD)
	}
}

// peer returns the process that has connected.
func peer(c *net.UnixConn) (p caller, err error) {
	p.FD = -1
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = credentials(fd); err != nil {
			return
		}
		p.PID, p.UID = int(cred.Pid), cred.Uid
		if p.Namespace, err = place.CookieOf(int(fd)); err != nil {
			return
		}
		pidfd, perr := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		switch {
		case perr == nil:
			p.FD = pidfd
		case errors.Is(perr, unix.ENOPROTOOPT): // before Linux 6.5
		default: // it has ended
			err = os.NewSyscallError("getsockopt", perr)
		}
	})
	return p, errors.Join(err, cerr)
}
