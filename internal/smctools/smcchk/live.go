// SPDX-License-Identifier: Apache-2.0

package smcchk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/owner"
	"smcr/nl"
	"smcr/smc"
)

// PeerCommand is the first argument of a program that runs as echo server or client of
// smc_chk. It is followed by "client ADDRESS:PORT" or "server ADDRESS:PORT". The
// program ends when its standard input ends.
const PeerCommand = "__smc_chk"

// connected is the text that a client prints when its connection is established.
const connected = "connected"

const (
	// patience is the time limit for the start of a server, and for the search for
	// a connection.
	patience = 10 * time.Second

	interval = 100 * time.Millisecond

	// grace is how long a stack may take to list a connection after the client
	// has it.
	grace = 2 * time.Second

	// linger is the maximum time for which a client holds its connection.
	linger = patience + 5*time.Second

	// endTime is the time limit for the end of a process.
	endTime = 5 * time.Second
)

// Peer is the echo server or client. It returns the exit status.
func Peer(ctx context.Context, in io.Reader, args []string) int {
	if len(args) != 2 {
		return 2
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	var err error
	if args[0] == "server" {
		err = echo(ctx, args[1])
	} else {
		err = hold(ctx, args[1])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "smc_chk: %v\n", err)
		return 1
	}
	return 0
}

// hold connects and keeps the connection.
func hold(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, linger)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Println(connected)
	<-ctx.Done()
	return nil
}

// echo serves until ctx ends.
func echo(ctx context.Context, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go func() { // ends with the connection, or with the process
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// A process is a peer under smc_run.
type process struct {
	cmd       *exec.Cmd
	stdin     io.Closer
	connected chan struct{} // closed when the client has printed connected
	ended     chan struct{}
}

// start starts a peer by smc_run. Its messages go to errOut.
func (c *check) start(what, role, address string, errOut io.Writer) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(c.ctx, exe)
	cmd.Args = []string{"smc_run", exe, PeerCommand, role, address}
	cmd.Stderr = errOut
	cmd.WaitDelay = endTime
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.debug("%s: %s", what, strings.Join(cmd.Args, " "))
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, stdin, make(chan struct{}), make(chan struct{})}
	go func() { // ends with the process, for which stop waits
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if lines.Text() == connected {
				close(p.connected)
				break
			}
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait() // the status is not needed: the connection shows the result
	}()
	return p, nil
}

// stop ends the process and waits for it.
func (p *process) stop() {
	p.stdin.Close()
	select {
	case <-p.ended:
	case <-time.After(endTime):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// withinMachine is printed for a target that has no connections over SMC-R.
const withinMachine = "     No SMC: connections within this machine are TCP\n"

// connect runs a client and prints the transport of its connection.
func (c *check) connect(ip netip.Addr, port uint16) {
	target := netip.AddrPortFrom(ip, port)
	client, err := c.start("Running client", "client", target.String(), nil)
	if err != nil {
		c.Printf("     Failed, no connection\n")
		return
	}
	conn, found := c.find(client, target)
	client.stop()
	if !found {
		c.debug("Client result: ")
		select {
		case <-client.connected:
			if ownAddress(ip) {
				c.Printf(withinMachine)
				return
			}
			c.Printf("     Failed  (TCP fallback), no reason is known\n")
		default:
			c.Printf("     Failed, no connection\n")
		}
		return
	}
	result := conn.Mode.String()
	if conn.Mode == nl.ModeTCP {
		result += fmt.Sprintf(" 0x%08x", conn.Fallback.Reason)
		if conn.Fallback.Peer != 0 {
			result += fmt.Sprintf("/0x%08x", conn.Fallback.Peer)
		}
	}
	c.debug("Client result: %s", result)
	switch {
	case conn.Mode == nl.ModeSMCR:
		c.Printf("     Success, using SMC-R\n")
	case conn.Mode == nl.ModeSMCD:
		c.Printf("     Success, using SMC-D\n")
	case smc.Diagnosis(conn.Fallback.Reason) == smc.DiagLocal:
		c.Printf(withinMachine)
	default:
		c.Printf("     Failed  (TCP fallback), reasons:\n          Client: %s\n", explain(conn.Fallback.Reason))
		if conn.Fallback.Peer != 0 {
			c.Printf("          Server: %s\n", explain(conn.Fallback.Peer))
		}
	}
}

// ownAddress reports whether ip is an address of this network namespace.
func ownAddress(ip netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == ip.Unmap().WithZone("")
	})
}

// explain returns a decline code with its meaning.
func explain(code uint32) string {
	return fmt.Sprintf("       0x%08x   %s", code, reason(code))
}

// reason returns the meaning of a decline code.
func reason(code uint32) string {
	if t := smc.Diagnosis(code).Text(); t != "" {
		return t
	}
	return "unknown reason"
}

// find waits for a connection to the target to appear in a stack. The user-space stack
// may start only now, and it does not know connections for which it was never asked.
func (c *check) find(client *process, target netip.AddrPort) (nl.Connection, bool) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	var since time.Time     // when the client was connected
	var other nl.Connection // to the same target, apparently of another process
	for {
		gone := false
		select {
		case <-client.ended:
			gone = true
		case <-client.connected:
			if since.IsZero() {
				since = time.Now()
			}
			gone = time.Since(since) > grace
		default:
		}
		for _, conn := range c.connections(ctx) {
			remote := netip.AddrPortFrom(conn.Remote.Addr().Unmap(), conn.Remote.Port())
			if remote == target && conn.State == smc.StateInit { // it is not decided yet
				gone = false
			}
			if remote != target || conn.State != smc.StateActive {
				continue
			}
			// The kernel does not report the process of a connection, and process
			// numbers differ between PID namespaces.
			if conn.PID == 0 || int(conn.PID) == client.cmd.Process.Pid {
				return conn, true
			}
			other = conn
		}
		select {
		case <-ctx.Done():
			return nl.Connection{}, false
		case <-time.After(interval):
		}
		if gone {
			return other, other.State == smc.StateActive
		}
	}
}

// connections returns the SMC sockets of the stacks that can be asked.
func (c *check) connections(ctx context.Context) []nl.Connection {
	backends := []string{c.Backend}
	if c.Backend == "auto" {
		backends = []string{"user", "kernel"}
	}
	var list []nl.Connection
	name := cmdutil.NameBy(owner.Read) // another connection to the target must not count
	for _, b := range backends {
		m, err := c.Dial(ctx, b)
		if err != nil {
			continue
		}
		for _, stack := range m {
			conns, err := stack.Connections(ctx)
			if err != nil {
				continue
			}
			for i := range conns {
				name(stack.Name, &conns[i])
			}
			list = append(list, conns...)
		}
		m.Close()
	}
	return list
}

// serve runs a server until it is stopped.
func (c *check) serve() int {
	network, host := "tcp4", ""
	if c.ipv6 {
		network, host = "tcp6", "::"
	}
	port, err := freePort(network, c.port)
	if err != nil {
		c.fail("%v", err)
		return 1
	}
	p, err := c.startServer(network, host, port)
	if err != nil {
		c.fail("%v", err)
		return 1
	}
	defer p.stop()
	c.Printf("Server started on port %d\n", port)
	select {
	case <-p.ended:
	case <-c.ctx.Done():
	}
	return 0
}

// freePort returns the first free port, from port on.
func freePort(network string, port uint16) (uint16, error) {
	for p := int(port); p < 1<<16; p++ {
		l, err := net.Listen(network, ":"+strconv.Itoa(p))
		if err == nil {
			return uint16(p), l.Close()
		}
	}
	return 0, errors.New("no free port")
}

// startServer starts a server and waits until it listens.
func (c *check) startServer(network, host string, port uint16) (*process, error) {
	if host == "" {
		host = "0.0.0.0"
	}
	var said strings.Builder
	p, err := c.start("Starting server", "server", net.JoinHostPort(host, strconv.Itoa(int(port))), &said)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(interval) {
		select {
		case <-p.ended:
			return nil, fmt.Errorf("the server ended: %s", strings.TrimSpace(said.String()))
		default:
		}
		l, err := net.Listen(network, ":"+strconv.Itoa(int(port)))
		if err != nil {
			return p, nil
		}
		l.Close()
	}
	p.stop()
	return nil, errors.New("the server does not listen")
}

// servers are a server for IPv4 and one for IPv6.
type servers struct {
	list         []*process
	port4, port6 uint16
}

func (c *check) startServers() (*servers, error) {
	s := &servers{}
	var err error
	if s.port4, err = freePort("tcp4", c.port); err != nil {
		return nil, err
	}
	p, err := c.startServer("tcp4", "", s.port4)
	if err != nil {
		return nil, err
	}
	s.list = append(s.list, p)
	if s.port6, err = freePort("tcp6", s.port4+1); err == nil {
		p, err = c.startServer("tcp6", "::", s.port6)
	}
	if err != nil {
		c.debug("No server for IPv6: %v", err)
		return s, nil
	}
	s.list = append(s.list, p)
	return s, nil
}

func (s *servers) stop() {
	for _, p := range s.list {
		p.stop()
	}
}
