// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"smcr/internal/place"
	"smcr/userstack/network"
)

// HostIDVariable names the environment variable by which tests have several hosts on
// one machine: stacks are on one machine if they have the same value, or none.
const HostIDVariable = "SMCR_HOST_ID"

const (
	// lookEach is how long the addresses of other namespaces are used before they are read
	// again.
	lookEach = 2 * time.Second
	// writeAfter is how long a change of the addresses waits for others.
	writeAfter = 50 * time.Millisecond
	// maxAddrs is the largest number of addresses of one network namespace.
	maxAddrs = 1024

	addressesHead = "smcr addresses 1 "
)

// machine knows which addresses belong to other network namespaces of this machine. Each stack
// writes those of its own namespace to a file:
//
//	smcr addresses 1 MACHINE
//	192.0.2.1
//	2001:db8::1
//
// MACHINE is a hash of the boot ID in hexadecimal. A connection to such an address is TCP,
// because software RoCE is slower within a machine. A wrong answer, for example of a file that
// is a moment old, costs speed alone: a socket that no stack has marked does not announce SMC.
type machine struct {
	claim *place.Claim // nil: other namespaces count as other machines
	id    string
	log   *slog.Logger

	mu     sync.Mutex
	looked time.Time
	others map[uint64]otherAddrs // by the cookie of the namespace
}

// otherAddrs are the addresses of another network namespace.
type otherAddrs struct {
	written time.Time // of the file
	addrs   map[netip.Addr]bool
}

// machineID returns an identifier of the machine that changes with each boot.
func machineID() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("service: %w", err)
	}
	id := sha256.Sum256(append(boot, os.Getenv(HostIDVariable)...))
	return hex.EncodeToString(id[:]), nil
}

// elsewhere returns the addresses of other network namespaces of this machine.
func (m *machine) elsewhere() (all []netip.Addr) {
	if m.claim == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lookAgain()
	for _, o := range m.others {
		for a := range o.addrs {
			if ofOneNamespace(a) {
				all = append(all, a)
			}
		}
	}
	return all
}

// lookAgain reads the files if they were not read for a while. m.mu is held.
func (m *machine) lookAgain() {
	if now := time.Now(); now.Sub(m.looked) > lookEach {
		m.looked = now
		m.look()
	}
}

// ofOneNamespace reports whether an address says which namespace has it.
func ofOneNamespace(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// look reads the files that were written since the last time. m.mu is held.
func (m *machine) look() {
	others := map[uint64]otherAddrs{}
	for _, cookie := range m.claim.Others() {
		o := m.others[cookie]
		b, written, err := m.claim.ReadAddresses(cookie, o.written)
		switch {
		case errors.Is(err, place.ErrUnchanged):
		case err == nil:
			o = otherAddrs{written, parseAddresses(b, m.id)}
		default:
			if !errors.Is(err, fs.ErrNotExist) {
				m.log.Debug("the addresses of another network namespace are not known", "netns", cookie, "err", err)
			}
			continue
		}
		others[cookie] = o
	}
	m.others = others
}

// parseAddresses parses the file of a stack. The result is empty if the stack is of another
// machine. Lines that make no sense have no effect.
func parseAddresses(b []byte, id string) map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	head, rest, _ := bytes.Cut(b, []byte("\n"))
	if string(head) != addressesHead+id {
		return addrs
	}
	for line := range bytes.Lines(rest) {
		a, err := netip.ParseAddr(string(bytes.TrimSuffix(line, []byte("\n"))))
		if err == nil && a.Zone() == "" && ofOneNamespace(a.Unmap()) && len(addrs) < maxAddrs {
			addrs[a.Unmap()] = true
		}
	}
	return addrs
}

// appendAddresses appends the content of the file of this stack.
func appendAddresses(b []byte, id string, addrs []netip.Addr) []byte {
	b = append(b, addressesHead+id+"\n"...)
	n := 0
	for _, a := range addrs {
		if a = a.Unmap().WithZone(""); ofOneNamespace(a) && n < maxAddrs {
			b = append(a.AppendTo(b), '\n')
			n++
		}
	}
	return b
}

// open begins to look, and writes the file of this stack for the first time.
func (m *machine) open(claim *place.Claim, l network.Locator) (err error) {
	if l == nil {
		return nil
	}
	if m.id, err = machineID(); err != nil {
		return err
	}
	m.claim = claim
	m.write(l, nil)
	return nil
}

// write writes the file of this stack, unless its content is last. It returns the content.
func (m *machine) write(l network.Locator, last []byte) []byte {
	addrs, err := l.Addresses()
	if err == nil {
		b := appendAddresses(nil, m.id, addrs)
		if bytes.Equal(b, last) {
			return last
		}
		if err = m.claim.WriteAddresses(b); err == nil {
			return b
		}
	}
	if !errors.Is(err, net.ErrClosed) {
		m.log.Warn("the stacks of other network namespaces do not know the addresses of this one", "err", err)
	}
	return nil
}

// follow writes the file again when addresses change, until ctx ends.
func (m *machine) follow(ctx context.Context, l network.Locator) {
	if m.claim == nil {
		return
	}
	var last []byte
	for {
		last = m.write(l, last)
		select {
		case <-l.Changes():
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(writeAfter):
		case <-ctx.Done():
			return
		}
	}
}
