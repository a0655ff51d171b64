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
	"time"

	"smcr/userstack"
)

// A stack listens and dials as package net does. Addresses of the own host,
// as here, are never reached by SMC-R: the connection is TCP, and the program
// does not notice.
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
	_, smc := c.(*userstack.Conn)
	fmt.Printf("%s, SMC-R: %v\n", buf, smc)
	// Output: hello, SMC-R: false
}

// A web server and a web client on a stack each.
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

// Where the TCP option is not permitted, the peers that speak SMC are listed.
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

// A program that makes its TCP connections itself hands them to the stack
// once it knows that the peer speaks SMC. After a DeclineError the connection
// goes on as TCP.
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

// The listings of a stack are those of the kernel's control interface.
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
