// SPDX-License-Identifier: Apache-2.0

package divert

import "smcr/smc"

// Plain returns why the connection of a socket is TCP, by the cookie of the socket, and whose it is. It is not ok if that
// is not known: the connection is taken, is older than the attachment, stays within the host, or is one of very many.
func (d *Diverter) Plain(cookie uint64) (of Owner, why smc.Diagnosis, ok bool) {
	var p bpfPlain
	err := d.bpf.Plains.Lookup(cookie, &p)
	return Owner{p.Cgroup, p.Uid}, smc.Diagnosis(p.Why), err == nil
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
