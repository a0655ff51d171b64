// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"encoding/json"
	"errors"

	"smcr/nl"
	"smcr/stats"
)

// ownCounters are the counters that only a stack in user space has. The cache file of such a
// stack, which smc-tools never reads, has them in JSON as its last line.
type ownCounters struct {
	Stats       nl.Stats
	PeerReasons []nl.Fallback `json:",omitempty"`
}

// own returns the own counters in c, without those that the other lines have.
func (c *counters) own() ownCounters {
	o := ownCounters{c.Stats, c.peers}
	o.Stats.SMCR, o.Stats.SMCD = stats.Tech{}, stats.Tech{}
	o.Stats.ClientHandshakeErrors, o.Stats.ServerHandshakeErrors = 0, 0
	return o
}

// ownLine returns the last line of the file, or nil for a stack that has no own counters.
func (c *counters) ownLine() []byte {
	o := c.own()
	if o.Stats == (nl.Stats{}) && len(o.PeerReasons) == 0 {
		return nil
	}
	b, err := json.Marshal(&o)
	if err != nil {
		return nil // numbers always become JSON
	}
	return append(b, '\n')
}

// readOwn reads the last line. It changes only own counters.
func (c *counters) readOwn(line []byte) error {
	var o ownCounters
	if err := json.Unmarshal(line, &o); err != nil {
		return errors.New("cache file corrupt: Success")
	}
	c.setOwn(o.Stats)
	c.peers = o.PeerReasons
	return nil
}

// setOwn takes the own counters from s, and nothing else.
func (c *counters) setOwn(s nl.Stats) {
	s.SMCR, s.SMCD = c.SMCR, c.SMCD
	s.ClientHandshakeErrors, s.ServerHandshakeErrors = c.ClientHandshakeErrors, c.ServerHandshakeErrors
	c.Stats = s
}
