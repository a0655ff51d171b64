// SPDX-License-Identifier: Apache-2.0

package divert

import "smcr/smc"

// A Plain says why the connection of a socket is TCP, and whose it is.
type Plain struct {
	Owner
	Why smc.Diagnosis
	// PeerWhy is that of the Silence because of which it is TCP.
	PeerWhy smc.Diagnosis
}

// Plains returns them by the cookies of the sockets. Those are missing of which it is not known: the connection is taken, is
// older than the attachment, stays within the host, or is one of very many of its user.
func (d *Diverter) Plains() (map[uint64]Plain, error) {
	all := map[uint64]Plain{}
	err := each(d.bpf.Plains, func(_ *bpfSeat, p *bpfPlain) {
		all[p.Cookie] = Plain{Owner{p.Cgroup, p.Uid}, smc.Diagnosis(p.Why), smc.Diagnosis(p.Code)}
	})
	return all, err
}

// Taken returns the cookies of the sockets of programs whose connections are taken.
func (d *Diverter) Taken() map[uint64]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[uint64]bool, len(d.flows))
	for _, f := range d.flows {
		all[f.Cookie] = true
	}
	return all
}
