// SPDX-License-Identifier: Apache-2.0

package userstack_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"

	"smcr/internal/testing/netnstest"
	"smcr/userstack"
)

// A server reads messages with a length before each, directly in the memory into which
// the client's adapter has written them. It copies the length before it uses it, because
// the peer could still change it there.
func ExampleConn_Peek() {
	hosts, err := netnstest.Create(netnstest.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer hosts.Close()
	server, client, closeAll := pair(hosts) // see the example of the package
	defer closeAll()

	if _, err := client.Write([]byte("\x00\x07no copy\x00\x06at all")); err != nil {
		log.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		log.Fatal(err)
	}

	for {
		a, b, err := server.Peek(2)
		if err != nil {
			fmt.Println(err)
			break
		}
		var head [2]byte
		copy(head[copy(head[:], a):], b)
		length := int(binary.BigEndian.Uint16(head[:]))
		if a, b, err = server.Peek(2 + length); err != nil {
			log.Fatal(err)
		}
		if len(a) >= 2+length { // the message is in one piece
			fmt.Printf("%s\n", a[2:2+length])
		} else {
			fmt.Printf("%s\n", append(append([]byte{}, a...), b...)[2:2+length])
		}
		if _, err := server.Discard(2 + length); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// no copy
	// at all
	// EOF
}

// pair returns both ends of a connection between two hosts.
func pair(hosts *netnstest.Pair) (server, client *userstack.Conn, closeAll func()) {
	var stacks [2]*userstack.Stack
	var l net.Listener
	var c net.Conn
	if err := hosts.A.Do(func() (err error) {
		if stacks[0], err = userstack.New(userstack.Config{}); err != nil {
			return err
		}
		l, err = stacks[0].Listen("tcp", ":7777")
		return err
	}); err != nil {
		log.Fatal(err)
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		accepted <- c
	}()
	if err := hosts.B.Do(func() (err error) {
		if stacks[1], err = userstack.New(userstack.Config{}); err != nil {
			return err
		}
		c, err = stacks[1].Dial("tcp", hosts.A.Addr()+":7777")
		return err
	}); err != nil {
		log.Fatal(err)
	}
	client, ok1 := userstack.AsConn(c)
	server, ok2 := userstack.AsConn(<-accepted)
	if !ok1 || !ok2 {
		log.Fatal("not SMC-R")
	}
	return server, client, func() {
		_ = client.Close()
		_ = server.Close()
		_ = stacks[1].Close()
		_ = stacks[0].Close()
	}
}

// Two stacks run on two hosts. Here, the hosts are network namespaces joined by a veth
// pair: netnstest makes them and runs functions on one of them. A program on a real host
// only calls New, Listen and Dial.
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
