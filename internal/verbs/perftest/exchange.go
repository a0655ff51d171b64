// SPDX-License-Identifier: Apache-2.0

package perftest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"time"

	"smcr/smc"
)

// The version that is told to the peer, and the oldest one that has the same
// exchange.
const (
	version    = "6.06"
	versionLen = 16
	oldest     = 5.70
)

// Sizes that the sides agree on, in bytes: the larger ones of the two.
const (
	defaultCycle = 4096 // memory that short messages go round in
	defaultLine  = 64   // distance of short messages, at least
	maxCycle     = 1 << 21
	maxLine      = 1 << 12
)

// ErrPeer is matched by the errors of a peer that speaks another protocol.
var ErrPeer = errors.New("the peer is not a perftest program of version 5.70 or later")

// A talk is the TCP connection of a test. In each exchange the client speaks
// first.
type talk struct {
	net.Conn
	client   bool
	patience time.Duration
}

// swap sends b and returns as many bytes of the peer. Without limit it waits as
// long as the connection stands.
func (t *talk) swap(b []byte, limited bool) ([]byte, error) {
	var at time.Time
	if limited {
		at = time.Now().Add(t.patience)
	}
	if err := t.SetDeadline(at); err != nil {
		return nil, err
	}
	in := make([]byte, len(b))
	send := func() error { _, err := t.Write(b); return err }
	recv := func() error { _, err := io.ReadFull(t, in); return err }
	steps := []func() error{recv, send}
	if t.client {
		steps = []func() error{send, recv}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("exchange with %v: %w", t.RemoteAddr(), err)
		}
	}
	return in, nil
}

// An agreement is what both sides know after the first exchanges.
type agreement struct {
	version     string // of the peer
	cycle, line int
	mtu         smc.MTU
}

// agree does the first exchanges: versions, buffer sizes, path MTU.
func (t *talk) agree(mtu smc.MTU) (a agreement, err error) {
	var v [versionLen]byte
	copy(v[:], version)
	in, err := t.swap(v[:], true)
	if err != nil {
		return a, err
	}
	text, _, _ := bytes.Cut(in, []byte{0})
	a.version = string(text)
	if x, err := strconv.ParseFloat(a.version, 64); err != nil || x < oldest {
		return a, fmt.Errorf("%w: it reports version %q", ErrPeer, a.version)
	}
	if a.cycle, err = t.larger(defaultCycle, maxCycle); err != nil {
		return a, err
	}
	if a.line, err = t.larger(defaultLine, maxLine); err != nil {
		return a, err
	}
	in, err = t.swap([]byte{'0' + byte(mtu), 0}, true)
	if err != nil {
		return a, err
	}
	theirs := smc.MTU(in[0] - '0')
	if theirs.Bytes() == 0 || in[1] != 0 {
		return a, fmt.Errorf("%w: path MTU code %q", ErrPeer, in)
	}
	a.mtu = min(mtu, theirs)
	return a, nil
}

// larger exchanges a number and returns the larger one.
func (t *talk) larger(n, limit int) (int, error) {
	in, err := t.swap(binary.BigEndian.AppendUint32(nil, uint32(n)), true)
	if err != nil {
		return 0, err
	}
	x := binary.BigEndian.Uint32(in)
	if x > uint32(limit) || x&(x-1) != 0 {
		return 0, fmt.Errorf("%w: a size of %d bytes", ErrPeer, x)
	}
	return max(n, int(x)), nil
}

// keys exchanges the queue pairs.
func (t *talk) keys(k *Keys, limited bool) (Keys, error) {
	in, err := t.swap(k.AppendTo(nil), limited)
	if err != nil {
		return Keys{}, err
	}
	return ParseKeys(in)
}

// report exchanges the results of a bandwidth test and returns the client's:
// its own or the peer's. It is five numbers, each exchanged for itself, of 8
// bytes in network byte order, the last three in IEEE 754.
func (t *talk) report(r *Bandwidth) error {
	nums := [...]uint64{
		uint64(r.Size), uint64(r.Iters),
		math.Float64bits(r.Peak), math.Float64bits(r.Average), math.Float64bits(r.Rate),
	}
	for i, n := range nums {
		in, err := t.swap(binary.BigEndian.AppendUint64(nil, n), true)
		if err != nil {
			return err
		}
		nums[i] = binary.BigEndian.Uint64(in)
	}
	if !t.client {
		r.Size, r.Iters = int(nums[0]), int(nums[1])
		r.Peak, r.Average, r.Rate = math.Float64frombits(nums[2]), math.Float64frombits(nums[3]), math.Float64frombits(nums[4])
	}
	return nil
}

// close says that this side is done and waits until the other one is.
func (t *talk) close(k *Keys, limited bool) error {
	if _, err := t.keys(k, limited); err != nil {
		return err
	}
	// The peer closes its side without reading this.
	_, _ = io.WriteString(t, "done\x00")
	return nil
}
