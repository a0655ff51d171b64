// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stagesAtOnce is how many connections are attacked at the same time.
const stagesAtOnce = 16

// A moment is when something is done to a socket: how long after connect() or accept(), or after the connection exists.
type moment struct {
	exists bool
	after  time.Duration
}

// moments are all stages of a connection: the handshake of the stacks takes a few milliseconds, or more.
var moments = []moment{
	{false, 0}, {false, 50 * time.Microsecond}, {false, 200 * time.Microsecond}, {false, 800 * time.Microsecond},
	{false, 3200 * time.Microsecond}, {false, 10 * time.Millisecond}, {false, 50 * time.Millisecond},
	{true, 0}, {true, 200 * time.Microsecond}, {true, time.Millisecond}, {true, 10 * time.Millisecond}, {true, 100 * time.Millisecond},
}

// wait waits for the moment. It reports whether the connection of a socket exists.
func (m moment) wait(fd int) bool {
	state := func() uint8 {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return unix.BPF_TCP_CLOSE
		}
		return info.State
	}
	for end := time.Now().Add(attemptTime / 10); m.exists && state() == unix.BPF_TCP_SYN_SENT && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond)
	}
	time.Sleep(m.after)
	return state() == unix.BPF_TCP_ESTABLISHED
}

// An act is something that a program without rights can do to its TCP socket. Whatever it returns is right.
type act struct {
	name string
	do   func(fd int) error
}

// option returns an act that sets an option of a socket.
func option(name string, level, opt int, value string) act {
	return act{name, func(fd int) error { return unix.SetsockoptString(fd, level, opt, value) }}
}

// number is a value of an option.
func number(n int32) string {
	b := make([]byte, 0, 4)
	for i := range 4 {
		b = append(b, byte(n>>(8*i)))
	}
	return string(b)
}

// md5Key is struct tcp_md5sig for an address.
func md5Key(a netip.Addr) string {
	b := make([]byte, 128+8+80)
	b[0], b[128+2] = unix.AF_INET, 3
	copy(b[4:], a.AsSlice())
	copy(b[128+8:], "key")
	return string(b)
}

// Of linux/tcp.h.
const (
	tcpRepair = 19
	tcpULP    = 31
)

func acts(peer netip.Addr) []act {
	return []act{
		{"close", func(int) error { return nil }},
		{"reset", func(fd int) error {
			return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}},
		{"shutdown both", func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) }},
		{"shutdown reading", func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) }},
		{"shutdown writing", func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) }},
		{"disconnect", func(fd int) error { return disconnect(fd) }},
		{"disconnect and listen", func(fd int) error { return errors.Join(disconnect(fd), unix.Listen(fd, 5)) }},
		{"disconnect and connect", func(fd int) error {
			return errors.Join(disconnect(fd), unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: peer.As4()}))
		}},
		{"pass on and forget", passOn},
		{"leave to a child that is killed", leave},
		{"urgent", func(fd int) error { return send(fd, []byte{1}, unix.MSG_OOB) }},
		{"fill", func(fd int) error { return send(fd, make([]byte, 4<<20), 0) }},
		option("another device", unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo"),
		option("repair", unix.IPPROTO_TCP, tcpRepair, number(1)),
		option("MD5", unix.IPPROTO_TCP, unix.TCP_MD5SIG, md5Key(peer)),
		option("ULP tls", unix.IPPROTO_TCP, tcpULP, "tls"),
		option("ULP smc", unix.IPPROTO_TCP, tcpULP, "smc"),
		option("congestion", unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"),
		option("segments", unix.IPPROTO_TCP, unix.TCP_MAXSEG, number(88)),
		option("window", unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, number(1)),
		option("user timeout", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, number(1)),
		option("fast open", unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, number(1)),
		option("small buffers", unix.SOL_SOCKET, unix.SO_RCVBUF, number(1)),
		option("short lives", unix.IPPROTO_IP, unix.IP_TTL, number(1)),
		option("IP options", unix.IPPROTO_IP, unix.IP_OPTIONS, "\x07\x07\x04\x00\x00\x00\x00\x00"),
		option("mark", unix.SOL_SOCKET, unix.SO_MARK, number(1)),
		option("transparent", unix.IPPROTO_IP, unix.IP_TRANSPARENT, number(1)),
		{"filter", func(fd int) error { // a program that drops everything
			none := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none[0]})
		}},
	}
}

// disconnect has a socket forget its connection.
func disconnect(fd int) error {
	var a unix.RawSockaddrInet4 // of no family
	if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a)); errno != 0 {
		return errno
	}
	return nil
}

// passOn leaves the last descriptor of a socket in a message that nobody reads.
func passOn(fd int) error {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	time.AfterFunc(50*time.Millisecond, func() { unix.Close(p[0]); unix.Close(p[1]) })
	return unix.Sendmsg(p[0], []byte{0}, unix.UnixRights(fd), nil, 0)
}

// leave has a child have the last descriptor of a socket when it is killed.
func leave(fd int) error {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dup), "socket")
	defer f.Close()
	c := exec.Command("sleep", "60")
	c.ExtraFiles = []*os.File{f}
	if err := c.Start(); err != nil {
		return err
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = c.Process.Kill(); _ = c.Wait() })
	return nil
}

// stages makes n connections to addr and the ports after it, and attacks each at one moment by one act, which are other ones each time. It
// prints how many there were.
func stages(addr netip.AddrPort, ports, n int) error {
	all := acts(addr.Addr())
	var next, connected atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, stagesAtOnce)
	for range stagesAtOnce {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				ok, err := stage(port(addr, i%ports), moments[i/len(all)%len(moments)], all[i%len(all)])
				if err != nil {
					errs <- err
					return
				}
				if ok {
					connected.Add(1)
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	fmt.Printf("attacked: %d, of these after connect(): %d\n", n, connected.Load())
	return nil
}

// stage attacks one connection, and reports whether it was connected before that.
func stage(addr netip.AddrPort, when moment, a act) (connected bool, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if when == moments[0] {
		_ = a.do(fd) // before the first SYN, too
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return false, nil
	}
	if connected = when.wait(fd); connected && when.after >= time.Millisecond {
		_ = send(fd, []byte("hello"), 0)
	}
	_ = a.do(fd)
	return connected, nil
}

// stagesAccepted does likewise with the connections that it accepts at addr and the ports after it, without end.
func stagesAccepted(addr netip.AddrPort, ports int) error {
	all := acts(addr.Addr())
	var next atomic.Int64
	for i := range ports {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		at := port(addr, i)
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}), unix.Listen(fd, 64)); err != nil {
			return fmt.Errorf("listen at %s: %w", at, err)
		}
		go func() {
			for {
				c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
				if err != nil {
					fatal(err)
				}
				go func() {
					defer unix.Close(c)
					i := int(next.Add(1)) - 1
					moments[i/len(all)%len(moments)].wait(c)
					_ = all[i%len(all)].do(c)
				}()
			}
		}()
	}
	fmt.Println("listening")
	select {}
}

// stagesArgs runs one of the two.
func stagesArgs(args []string) error {
	addr, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	ports, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if args[0] == "stages-accepted" {
		return stagesAccepted(addr, ports)
	}
	return stages(addr, ports, count(args[3]))
}
