// SPDX-License-Identifier: Apache-2.0

package userstack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"smcr/nl"
	"smcr/userstack"
)

// A stack listens and dials like package net. SMC-R is not used within one host, so this
// connection is TCP, and the program does not notice. The example of the package has two
// hosts.
func ExampleStack() {
	stack, err := userstack.New(userstack.Config{NoOption: true})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	l, err := stack.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	c, err := stack.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "hello")
	buf := make([]byte, 5)
	if _, err := io.ReadFull(c, buf); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, SMC-R: %v\n", buf, userstack.IsSMC(c))
	// Output: hello, SMC-R: false
}

// A web server and a web client use a stack instead of package net.
func ExampleStack_DialContext() {
	stack, err := userstack.New(userstack.Config{NoOption: true})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	l, err := stack.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "served")
		}),
		ReadHeaderTimeout: 5 * time.Second,
	}
	go srv.Serve(l) //nolint:errcheck // ends with Close
	defer srv.Close()

	client := http.Client{Transport: &http.Transport{DialContext: stack.DialContext, DisableKeepAlives: true}}
	resp, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(resp.StatusCode, string(body))
	// Output: 200 served
}

// If the TCP option is not permitted, list the peers that speak SMC.
func ExampleConfig() {
	stack, err := userstack.New(userstack.Config{
		NoOption:  true,
		AssumeSMC: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		NetDevs:   []string{"eth0"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	fmt.Println(stack.OptionError())
	// Output: userstack: Config.NoOption is set
}

// A program that makes its TCP connections itself passes them to the stack when it knows
// that the peer speaks SMC. After a DeclineError, the connection continues as TCP.
func ExampleStack_Client() {
	stack, err := userstack.New(userstack.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	tcp, err := net.Dial("tcp", "192.0.2.7:80")
	if err != nil {
		log.Fatal(err)
	}
	var conn net.Conn
	smc, err := stack.Client(context.Background(), tcp.(*net.TCPConn))
	var declined *userstack.DeclineError
	switch {
	case err == nil:
		conn = smc
	case errors.As(err, &declined):
		log.Print(declined)
		conn = tcp
	default:
		tcp.Close()
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n")
}

// A program that requires SMC-R gets the reason if it cannot be used. Here, the address
// is one of its own host.
func ExampleDialer() {
	stack, err := userstack.New(userstack.Config{NoOption: true})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	d := userstack.Dialer{Stack: stack, RequireSMC: true, NetDialer: &net.Dialer{Timeout: 5 * time.Second}}
	c, err := d.Dial("tcp", "127.0.0.1:7777")
	var declined *userstack.DeclineError
	switch {
	case errors.As(err, &declined):
		fmt.Println("not SMC-R:", declined.Code.Text())
		fmt.Println("not on the network:", errors.Is(err, userstack.ErrNotOnLink))
	case err != nil:
		log.Fatal(err) // there is no connection at all
	default:
		c.Close()
	}
	// Output:
	// not SMC-R: the peer is on this machine
	// not on the network: true
}

// A server logs which clients do not use SMC-R, and why.
func ExampleListenConfig() {
	stack, err := userstack.New(userstack.Config{NoOption: true})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	lc := userstack.ListenConfig{Stack: stack, Declined: func(remote net.Addr, why *userstack.DeclineError) {
		// This stack cannot announce SMC, because NoOption is set.
		fmt.Println(remote.(*net.TCPAddr).IP, "uses TCP:", why.Code.Text())
	}}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	c.Close()
	// Output: 127.0.0.1 uses TCP: configuration error
}

// With a control address, the commands of smcr list the stack of a program: smcr
// --backend unix:/run/app.sock linkgroup list. They ask in the same way as this client.
func ExampleStack_ServeControl() {
	stack, err := userstack.New(userstack.Config{NoOption: true, Hostname: "hostA"})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	dir, err := os.MkdirTemp("", "app")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	address := filepath.Join(dir, "app.sock")
	err = stack.ServeControl(context.Background(), address)
	if errors.Is(err, userstack.ErrControlTaken) {
		log.Fatal("runs already: ", err)
	} else if err != nil {
		log.Fatal(err)
	}

	client, err := nl.DialUnix(context.Background(), address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	info, err := client.SysInfo(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	groups, err := client.LinkGroups(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.LocalHost, "has", len(groups), "link groups")
	// Output: hostA has 0 link groups
}

// The stack has the same listings as the kernel's control interface.
func ExampleStack_Control() {
	stack, err := userstack.New(userstack.Config{NoOption: true})
	if err != nil {
		log.Fatal(err)
	}
	defer stack.Close()
	ctl := stack.Control()
	defer ctl.Close()
	groups, err := ctl.LinkGroups(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(groups), "link groups")
	// Output: 0 link groups
}
