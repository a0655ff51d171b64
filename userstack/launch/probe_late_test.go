// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// probeLate does what it reads from a FIFO, a line each, and answers each with a
// line. It begins with the listening sockets that it inherits, from descriptor 3.
func probeLate(args []string) error {
	in, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer in.Close()
	p := &lateProbe{}
	inherits, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for fd := 3; fd < 3+inherits; fd++ {
		p.lists = append(p.lists, fd)
	}
	fmt.Println("begins")
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if f[0] == "exit" {
			return nil
		}
		answer, err := p.do(f[0], f[1:])
		if err != nil {
			answer = err.Error()
		}
		fmt.Println(answer)
	}
	return lines.Err()
}

type lateProbe struct{ lists, conns []int }

func (p *lateProbe) do(what string, args []string) (string, error) {
	if what == "listen" {
		return p.listen(args)
	}
	i, err := strconv.Atoi(args[0])
	if err != nil {
		return "", err
	}
	switch what {
	case "poll":
		fds := []unix.PollFd{{Fd: int32(p.lists[i]), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, 0)
		return fmt.Sprintf("%#x", fds[0].Revents), err
	case "accept":
		fd, sa, err := unix.Accept4(p.lists[i], unix.SOCK_CLOEXEC)
		if err != nil {
			return "", err
		}
		p.conns = append(p.conns, fd)
		peer, err := unix.Getpeername(fd)
		if err != nil || toAddrPort(peer) != toAddrPort(sa) {
			return "", fmt.Errorf("getpeername %v, %v", peer, err)
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return "", err
		}
		here := toAddrPort(name)
		return toAddrPort(sa).String() + " " + netip.AddrPortFrom(here.Addr().Unmap(), here.Port()).String(), nil
	case "read":
		b := make([]byte, 100)
		_ = unix.SetsockoptTimeval(p.conns[i], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
		n, err := readAgain(p.conns[i], b)
		return string(b[:max(n, 0)]), err
	case "write":
		_, err := unix.Write(p.conns[i], []byte(args[1]))
		return "written", err
	case "close":
		return "closed", unix.Close(p.lists[i])
	case "shutdown":
		return "shut down", unix.Shutdown(p.lists[i], unix.SHUT_RD)
	case "dup":
		fd, err := unix.FcntlInt(uintptr(p.lists[i]), unix.F_DUPFD_CLOEXEC, 0)
		p.lists = append(p.lists, fd)
		return "dup", err
	case "child":
		exe, err := os.Executable()
		if err != nil {
			return "", err
		}
		fd, err := unix.FcntlInt(uintptr(p.lists[i]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		l := os.NewFile(uintptr(fd), "listener")
		defer l.Close()
		cmd := exec.Command(exe, args[1], "1")
		cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = []*os.File{l}, os.Stdout, os.Stderr
		err = cmd.Start()
		return "child", errors.Join(err, unix.SetNonblock(p.lists[i], true)) // os.File clears it
	case "churn":
		for range i {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err == nil {
				err = unix.Listen(fd, 1)
			}
			if err != nil {
				return "", err
			}
			_ = unix.Close(fd)
		}
		return "churned", nil
	}
	return "", errors.New("unknown " + what)
}

// listen opens a socket that does not block: listen ADDRESS BACKLOG OPTION...
func (p *lateProbe) listen(args []string) (string, error) {
	sa, family, _ := sockaddrOf(args[0])
	backlog, err := strconv.Atoi(args[1])
	if err != nil {
		return "", err
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	for _, o := range args[2:] {
		name, value, _ := strings.Cut(o, "=")
		switch name {
		case "v6only":
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
		case "reuseport":
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		case "reuseaddr":
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		case "defer":
			err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5)
		case "ttl":
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MINTTL, 64)
		case "device":
			err = unix.BindToDevice(fd, value)
		case "transparent":
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", o, err)
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return "", err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return "", err
	}
	p.lists = append(p.lists, fd)
	name, err := unix.Getsockname(fd)
	if err != nil {
		return "", err
	}
	return toAddrPort(name).String(), nil
}

func readAgain(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
