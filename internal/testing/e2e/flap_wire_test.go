// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"smcr/internal/testing/netnstest"
	messages "smcr/userstack/wire"
)

// The offset of the message in a SEND of one packet: after Ethernet, GRH or IPv4 and UDP,
// and BTH.
const (
	messageV1 = 14 + 40 + 12
	messageV2 = 14 + 20 + 8 + 12
	icrcLen   = 4
)

// watchFailover captures the LLC messages and the failover validations that a switch
// forwards, without other data.
func watchFailover(t *testing.T, sw *netnstest.Host, v2 bool) *netnstest.Capture {
	t.Helper()
	// SEND ONLY. CDC messages are captured only with the failover validation indicator.
	filter := "ether proto 0x8915 and ether[54] = 4 and (ether[66] != 0xfe or ether[90] & 8 != 0)"
	if v2 {
		filter = "udp dst port 4791 and udp[8] = 4 and (udp[20] != 0xfe or udp[44] & 8 != 0)"
	}
	return sw.StartCapture(t, netnstest.CaptureOptions{Link: len(sw.Links) - 1, Filter: filter})
}

// wantFailover checks that a capture has each step of a failover and of the return of a
// link, in correct messages.
func wantFailover(t *testing.T, c *netnstest.Capture, v2 bool, flaps int) {
	t.Helper()
	dropped, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if dropped > 0 {
		t.Errorf("the capture missed %d packets", dropped)
	}
	count, err := failoverMessages(c.File, v2)
	if err != nil {
		t.Error(err)
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		t.Logf("%6d %s", count[name], name)
	}
	// Each flap ends one link and adds one. A link whose own device is down may fail
	// before DELETE LINK is sent.
	wants := []string{"CONFIRM LINK", "CONFIRM LINK reply", "ADD LINK", "ADD LINK reply", "DELETE LINK", "DELETE LINK reply"}
	if !v2 {
		wants = append(wants, "ADD LINK CONTINUATION", "ADD LINK CONTINUATION reply")
	}
	for _, want := range wants {
		if count[want] < flaps {
			t.Errorf("%d %s, want at least one for each of %d flaps", count[want], want, flaps)
		}
	}
	if n := count["failover validation"]; n < flaps {
		t.Errorf("%d failover validations, want at least one for each of %d flaps", n, flaps)
	}
	if v2 {
		return // tshark calls the LLC messages of Linux malformed, too
	}
	for name, filter := range map[string]string{
		"CONFIRM LINK":          "smc.llc_msg == 0x01",
		"ADD LINK":              "smc.llc_msg == 0x02",
		"ADD LINK CONTINUATION": "smc.llc_msg == 0x03",
		"DELETE LINK":           "smc.llc_msg == 0x04",
		"failover validation":   "smc.llc_msg == 0xfe and smc.rmbe.ctrl.failover.validation == 1",
	} {
		if n := len(tshark(t, c.File, filter, "frame.number")); n == 0 {
			t.Errorf("tshark sees no %s", name)
		}
	}
	if bad := tshark(t, c.File, "_ws.malformed or not smc", "frame.number"); len(bad) > 0 {
		t.Errorf("tshark takes frames %s for malformed or for something else", head(bad))
	}
}

// failoverMessages decodes the messages of a capture of watchFailover and counts them by
// name.
func failoverMessages(file string, v2 bool) (map[string]int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	const head, record = 24, 16
	if len(b) < head || !bytes.Equal(b[:4], binary.NativeEndian.AppendUint32(nil, 0xa1b2c3d4)) {
		return nil, fmt.Errorf("%s is no capture of this host", file)
	}
	start := messageV1
	if v2 {
		start = messageV2
	}
	count := map[string]int{}
	for b, n := b[head:], 1; len(b) >= record; n++ {
		size := int(binary.NativeEndian.Uint32(b[8:]))
		if len(b) < record+size || size < start+messages.LLCLen+icrcLen {
			return count, fmt.Errorf("frame %d is cut", n)
		}
		msg := b[record+start : record+size-icrcLen]
		b = b[record+size:]
		if messages.IsCDC(msg) {
			m, err := messages.ParseCDC(msg)
			if err != nil || m.Flags&messages.ProdFailoverVerify == 0 {
				return count, fmt.Errorf("frame %d: %w, flags %#x", n, err, m.Flags)
			}
			count["failover validation"]++
			continue
		}
		m, err := messages.ParseLLC(msg)
		if err != nil {
			return count, fmt.Errorf("frame %d: %w", n, err)
		}
		name := m.LLCType().String()
		if m.IsReply() {
			name += " reply"
		}
		count[name]++
	}
	return count, nil
}
