// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/userstack/broker"
)

// sessionFD is the descriptor of the session in the child process.
const sessionFD = 3

// foreign opens a session and runs this program with it in new namespaces.
func foreign(addr netip.AddrPort) error {
	c, err := dial(place.Launchers)
	if err != nil {
		return err
	}
	f, err := c.File()
	if err != nil {
		return err
	}
	_ = c.Close()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--net", "sh", "-c", `ip link set lo up && exec "$0" inside "$1"`, exe, addr.String())
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// inside passes sockets of this network namespace to the stack of another one.
func inside(addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	f := os.NewFile(sessionFD, "session")
	c, err := net.FileConn(f)
	if err != nil {
		return err
	}
	_ = f.Close()
	cl, err := broker.NewClient(ctx, c.(*net.UnixConn), "foreign")
	if err != nil {
		return err
	}
	defer cl.Close()
	l, err := net.Listen("tcp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), addr.Port()).String())
	if err != nil {
		return err
	}
	defer l.Close()
	client, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		return err
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		return err
	}
	defer server.Close()

	fresh, err := freshSocket()
	if err != nil {
		return err
	}
	fmt.Printf("listen: %v\n", cl.Listen(ctx, fresh))
	conn, err := cl.Connect(fresh, broker.ConnectRequest{Remote: addr})
	if err := answer(ctx, "connect", conn, err); err != nil {
		return err
	}
	sf, err := server.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	defer sf.Close()
	conn, err = cl.Accept(int(sf.Fd()), netip.AddrPort{}, netip.AddrPort{})
	if err := answer(ctx, "accept", conn, err); err != nil {
		return err
	}
	fmt.Println("done")
	return nil
}

func freshSocket() (int, error) {
	return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}

// answer prints the first answer of the stack on a connection.
func answer(ctx context.Context, what string, c *broker.ClientConn, err error) error {
	if err != nil {
		return err
	}
	select {
	case ev := <-c.Events():
		fmt.Printf("%s: kind %d: %s\n", what, ev.Kind, ev.Text)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
