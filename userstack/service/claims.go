// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"sync"

	"smcr/userstack/network"
)

// errClaimed is the error of a socket that a launcher passes while another handshake
// is in progress on it: the messages of two handshakes on one connection would mix.
var errClaimed = fmt.Errorf("%w: it is being connected already", errSocket)

// claims are the sockets on which handshakes are in progress, by their cookies.
type claims struct {
	announced func(cookie uint64) // if not nil, told of each socket first

	mu    sync.Mutex
	taken map[uint64]struct{}
}

// take claims a socket, or returns errClaimed. release ends the claim and is never nil.
func (c *claims) take(fd int) (release func(), err error) {
	cookie := network.Cookie(fd)
	if cookie == 0 {
		return func() {}, errors.New("service: the socket has no cookie")
	}
	if c.announced != nil {
		c.announced(cookie)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.taken[cookie]; ok {
		return func() {}, errClaimed
	}
	if c.taken == nil {
		c.taken = map[uint64]struct{}{}
	}
	c.taken[cookie] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.taken, cookie)
	}, nil
}
