// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"smcr/internal/printable"
)

// timeLayout shows the time of day: lines of a trace are near each other.
const timeLayout = "15:04:05.000000"

var typeNames = map[Type]string{CLC: "CLC ", LLC: "LLC ", CDC: "CDC ", RoCE: "RoCE"}

// Line returns the event as one line without a line end:
//
//	TIME TYPE SOURCE > DESTINATION [group] QPs: MESSAGE field=value … [conn] (fault)
//
// With all, it has all fields, not only the most important ones. Texts from other hosts
// are cleaned.
func (e *Event) Line(all bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s > %s", e.Time.Format(timeLayout), typeNames[e.Type], address(e.Src), address(e.Dst))
	if e.Group != "" {
		b.WriteString(" group " + e.Group)
	}
	if e.Type != CLC {
		if e.SrcQPN != 0 {
			fmt.Fprintf(&b, " qp %s > %s", e.SrcQPN, e.DstQPN)
		} else {
			fmt.Fprintf(&b, " qp %s", e.DstQPN)
		}
	}
	b.WriteString(":")
	if e.Type != CDC { // there is one CDC message
		b.WriteString(" " + e.Message)
	}
	if e.Reply {
		b.WriteString(" reply")
	}
	for _, f := range e.Fields {
		if all || f.Brief {
			b.WriteString(" " + f.Name + "=" + text(f.Value))
		}
	}
	if e.Type == CDC && e.Conn != (Conn{}) {
		b.WriteString(" conn=" + e.Conn.String())
	}
	if e.Fault != "" {
		b.WriteString(" (" + e.Fault + ")")
	}
	return printable.Line(b.String())
}

// address leaves out port 0, which stands for none.
func address(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// text returns the value of a field. Values with blanks are in quotes.
func text(v any) string {
	s := fmt.Sprint(v)
	if list, ok := v.([]string); ok {
		s = strings.Join(list, ",")
	}
	switch v := v.(type) {
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case string, []string:
		if s == "" {
			return "-"
		}
		if strings.ContainsAny(s, " \t\"") {
			return `"` + strings.ReplaceAll(s, `"`, `'`) + `"`
		}
	}
	return s
}

// eventJSON is the form of an event in JSON. The names are stable.
type eventJSON struct {
	Frame       int         `json:"frame,omitempty"`
	Time        string      `json:"time"`
	Type        Type        `json:"type"`
	Source      string      `json:"source"`
	Destination string      `json:"destination"`
	LinkGroup   string      `json:"link_group,omitempty"`
	SourceQPN   string      `json:"source_qpn,omitempty"`
	DestQPN     string      `json:"destination_qpn,omitempty"`
	Message     string      `json:"message"`
	Reply       bool        `json:"reply,omitempty"`
	Connection  string      `json:"connection,omitempty"`
	Fault       string      `json:"fault,omitempty"`
	Fields      orderedJSON `json:"fields"`
}

// orderedJSON is an object that keeps the order of the fields.
type orderedJSON []Field

// MarshalJSON implements [json.Marshaler].
func (o orderedJSON) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		v := f.Value
		if list, ok := v.([]string); ok && list == nil {
			v = []string{}
		}
		value, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", f.Name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// JSON returns a value that encodes as the object of the event.
func (e *Event) JSON() any {
	j := eventJSON{
		Frame: e.Frame, Time: e.Time.Format(time.RFC3339Nano), Type: e.Type,
		Source: address(e.Src), Destination: address(e.Dst), LinkGroup: e.Group,
		Message: e.Message, Reply: e.Reply, Connection: e.Conn.String(), Fault: e.Fault, Fields: e.Fields,
	}
	if e.Type != CLC {
		j.DestQPN = e.DstQPN.String()
		if e.SrcQPN != 0 {
			j.SourceQPN = e.SrcQPN.String()
		}
	}
	return j
}
