// SPDX-License-Identifier: Apache-2.0

package sdnotify

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Environment variables that the service manager sets.
const (
	socketEnv   = "NOTIFY_SOCKET"
	intervalEnv = "WATCHDOG_USEC"
	pidEnv      = "WATCHDOG_PID"
)

// Messages to the service manager (sd_notify(3)).
const (
	Ready    = "READY=1"    // the start, or a reload, is complete
	Stopping = "STOPPING=1" // the end has begun
	Alive    = "WATCHDOG=1" // the service works
)

// Status is a message with a text for people, in one line.
func Status(text string) string { return "STATUS=" + strings.ReplaceAll(text, "\n", " ") }

// Reloading is the message that a reload begins. [Ready] ends it.
func Reloading() string {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail: the clock exists
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)
}

// MainProcess is the message that the process pid is the main process of the service from
// now on. The service manager ignores it if this process does not belong to the service.
func MainProcess(pid int) string { return "MAINPID=" + strconv.Itoa(pid) }

// Successor returns the environment for a process that becomes the main process of the service
// in place of another one. before is the environment of that one: the service manager tells
// only a main process how often it wants messages. ok reports whether the service manager takes
// messages of this process. Successor must be called before [New], which removes the variables.
func Successor(before []string) (env []string, ok bool) {
	watchdog := func(v string) bool {
		return strings.HasPrefix(v, intervalEnv+"=") || strings.HasPrefix(v, pidEnv+"=")
	}
	env = slices.DeleteFunc(os.Environ(), watchdog)
	for _, v := range before {
		if strings.HasPrefix(v, intervalEnv+"=") {
			env = append(env, v)
		}
	}
	return env, os.Getenv(socketEnv) != ""
}

// managed are the variables by which a service manager tells a process what it is, and what it was started with: also the
// sockets of socket activation, and where its output goes.
var managed = []string{
	socketEnv, intervalEnv, pidEnv, "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES", "FDSTORE",
	"MAINPID", "SYSTEMD_EXEC_PID", "INVOCATION_ID", "JOURNAL_STREAM",
}

// Unmanaged returns an environment without what a service manager has told the process that has it, for one that does
// not belong to the service: its messages would be taken for those of the service.
func Unmanaged(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(managed, name)
	})
}

// A Notifier sends messages to the service manager. A nil Notifier is for a process that was
// not started by one: it sends nothing.
type Notifier struct {
	addr     net.UnixAddr
	watchdog time.Duration
	left     atomic.Bool
}

// New returns the Notifier that the environment describes, or nil without an error if
// there is no service manager. It removes its variables from the environment.
func New() (*Notifier, error) {
	name, interval, pid := os.Getenv(socketEnv), os.Getenv(intervalEnv), os.Getenv(pidEnv)
	for _, v := range []string{socketEnv, intervalEnv, pidEnv} {
		if err := os.Unsetenv(v); err != nil {
			return nil, err
		}
	}
	if name == "" {
		return nil, nil
	}
	if name[0] != '/' && name[0] != '@' {
		return nil, fmt.Errorf("%s: %q is not an address of a unix socket", socketEnv, name)
	}
	n := &Notifier{addr: net.UnixAddr{Name: name, Net: "unixgram"}}
	if interval == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return n, nil
	}
	usec, err := strconv.ParseInt(interval, 10, 64)
	if err != nil || usec <= 0 || usec > int64(24*time.Hour/time.Microsecond) {
		return n, fmt.Errorf("%s: %q is not a number of microseconds", intervalEnv, interval)
	}
	n.watchdog = time.Duration(usec) * time.Microsecond
	return n, nil
}

// Watchdog returns the time within which the service manager wants each next [Alive], or 0
// if it wants none.
func (n *Notifier) Watchdog() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog
}

// Leave ends the messages of this process, because another one is the main process of the
// service. Send sends nothing from now on.
func (n *Notifier) Leave() {
	if n != nil {
		n.left.Store(true)
	}
}

// Send sends messages in one datagram. It waits for at most a second.
func (n *Notifier) Send(messages ...string) error {
	if n == nil || n.left.Load() {
		return nil
	}
	// A new socket each time: the service manager may have made its socket anew.
	c, err := net.DialUnix(n.addr.Net, nil, &n.addr)
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	if _, err := c.Write([]byte(strings.Join(messages, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
