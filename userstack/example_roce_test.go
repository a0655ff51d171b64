// SPDX-License-Identifier: Apache-2.0

package userstack_test

import (
	"fmt"
	"io"
	"log"
	"net"

	"smcr/internal/netnstest"
	"smcr/userstack"
)

// Two stacks on two hosts, which here are network namespaces joined by a veth
// pair: what netnstest does is making these and running a function on one of
// them. A program on a real host calls New, Listen and Dial alone.
func Example() {
	hosts, err := netnstest.Create(netnstest.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer hosts.Close()

	var server, client *userstack.Stack
	var l net.Listener
	if err := hosts.A.Do(func() (err error) {
		if server, err = userstack.New(userstack.Config{}); err != nil {
			return err
		}
		l, err = server.Listen("tcp", ":7777")
		return err
	}); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()

	var c net.Conn
	if err := hosts.B.Do(func() (err error) {
		if client, err = userstack.New(userstack.Config{}); err != nil {
			return err
		}
		c, err = client.Dial("tcp", hosts.A.Addr()+":7777")
		return err
	}); err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	defer c.Close()
	fmt.Fprint(c, "hello")
	buf := make([]byte, 5)
	if _, err := io.ReadFull(c, buf); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, SMC-R: %v\n", buf, userstack.IsSMC(c))

	if smc, ok := userstack.AsConn(c); ok {
		lg := smc.LinkGroup()
		fmt.Printf("link group %s with %s: %d link on %s\n", lg.ID, lg.Peer, len(lg.Links), lg.Links[0].IBDev)
	}
	// Output:
	// hello, SMC-R: true
	// link group 00000100 with 10.77.0.1: 1 link on soft-eth0
}
