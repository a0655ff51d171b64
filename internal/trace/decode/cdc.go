// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"fmt"

	"smcr/userstack/wire"
)

// flagName is the name of a bit in a CDC message.
type flagName struct {
	bit  uint8
	name string
}

var producerFlags = []flagName{
	{uint8(wire.ProdWriterBlocked), "writer-blocked"},
	{uint8(wire.ProdUrgentPending), "urgent-pending"},
	{uint8(wire.ProdUrgentPresent), "urgent-present"},
	{uint8(wire.ProdCursorRequest), "cursor-request"},
	{uint8(wire.ProdFailoverVerify), "failover-verify"},
}

var stateFlags = []flagName{
	{uint8(wire.ConnSendingDone), "sending-done"},
	{uint8(wire.ConnClosed), "closed"},
	{uint8(wire.ConnAbnormalClose), "abnormal-close"},
}

// cdc decodes a CDC message into ev.
func (d *Decoder) cdc(ev *Event, b []byte) {
	ev.Type, ev.Message = CDC, "CDC"
	m, err := wire.ParseCDC(b)
	if err != nil {
		ev.Fault = faultOf(err)
		return
	}
	var f fields
	f.brief("seq", m.Seq)
	f.brief("token", token(m.Token))
	f.brief("prod", cursor(m.Prod))
	f.brief("cons", cursor(m.Cons))
	names := set(uint8(m.Flags), producerFlags)
	f = append(f, Field{"flags", names, len(names) > 0})
	names = set(uint8(m.State), stateFlags)
	f = append(f, Field{"state", names, len(names) > 0})
	ev.Fields = f
	ev.Conn = d.connOf(m.Token, QP{ev.Dst.Addr(), ev.DstQPN})
}

func set(bits uint8, names []flagName) (out []string) {
	for _, n := range names {
		if bits&n.bit != 0 {
			out = append(out, n.name)
		}
	}
	return out
}

// cursor returns WRAP:COUNT in decimal digits.
func cursor(c wire.Cursor) string { return fmt.Sprintf("%d:%d", c.Wrap, c.Count) }
