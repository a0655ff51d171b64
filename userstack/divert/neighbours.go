// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"smcr/quota"
)

// What a program sends reaches inner by the device of its route, where the kernel sends it to a neighbour: the peer, or a
// gateway. If nothing answers there any more, SMC-R goes on by another link, but the kernel gives the neighbour up, and
// drops the packets before the device has them. So the stack keeps the address of a neighbour that connections need
// which SMC-R carries. Nothing else does: a program that only receives has nothing that TCP could confirm the neighbour by.
//
//	the kernel                           | the stack
//	-------------------------------------+-----------------------------------------------------------
//	knows the address of a neighbour     | remembers it
//	gives it up (NUD_FAILED)             | has the kernel ask all hosts once more: the address may be
//	                                     | another one now. If none answers, the old one is as good as
//	                                     | one that was not used for long (NUD_STALE): the next packet
//	                                     | goes there, and the kernel asks again, for some 8 s
//	forgets it, as the device has no     | gives it back at once: nobody could answer
//	carrier                              |
//	forgets it otherwise                 | nothing: the next packet has the kernel ask, and then as above

// answerTime is how long a neighbour has to answer before its old address is good again: the packets of
// programs wait meanwhile.
const answerTime = 100 * time.Millisecond

// goneMost is how many neighbours are remembered that the kernel has forgotten, and goneOfHop how many of one host, which can have any
// number of addresses. Of the rest, the kernel bounds how many there are.
const (
	goneMost  = 1024
	goneOfHop = 64
)

// A neighbour is an address at a device. It has no zone.
type neighbour struct {
	dev uint32
	ip  netip.Addr
}

// A neighbourChange is what the kernel has done to its entry of a neighbour.
type neighbourChange struct {
	neighbour
	gone  bool     // it has none any more
	state int      // of the entry: one of netlink.NUD_*
	mac   [8]uint8 // as bpfHop has it
}

// valid are the states of an entry whose address the kernel uses.
const valid = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT | netlink.NUD_NOARP

// neighbourTable is that of the kernel.
type neighbourTable interface {
	// ask has the kernel ask who has the address of a neighbour that it has given up, whose hardware address was mac.
	ask(n neighbour, mac [8]uint8) error
	// keep gives a neighbour its address back, unless the kernel knows another one by now.
	keep(n neighbour, mac [8]uint8) error
	// device returns the name of a device, and whether it is up without a carrier.
	device(index uint32) (name string, unplugged bool)
}

// A keeper keeps the addresses of neighbours that nothing answers at. One goroutine has it.
type keeper struct {
	table neighbourTable
	// carried returns where the packets of programs go whose connections SMC-R carries.
	carried func() map[bpfHop]bool
	log     *slog.Logger

	known map[neighbour]*known
	asked map[neighbour]time.Time // when keep is due, unless the neighbour answers
}

// known is what is remembered of a neighbour: of each that the kernel knows the address of, or that connections need.
type known struct {
	mac  [8]uint8
	gone bool // the kernel has no entry
	kept bool // it has not answered since
}

func newKeeper(table neighbourTable, carried func() map[bpfHop]bool, log *slog.Logger) *keeper {
	return &keeper{table: table, carried: carried, log: log, known: map[neighbour]*known{}, asked: map[neighbour]time.Time{}}
}

// hear takes changes in their order.
func (k *keeper) hear(changes []neighbourChange) {
	lost := map[neighbour]bool{}
	for _, c := range changes {
		n := k.known[c.neighbour]
		switch {
		case c.gone || c.state == netlink.NUD_FAILED:
			if n != nil {
				lost[c.neighbour], n.gone = true, c.gone
			}
		case c.state&valid != 0:
			if n == nil {
				n = new(known)
				k.known[c.neighbour] = n
			}
			n.mac, n.gone = c.mac, false
			n.kept = n.kept && c.state&(netlink.NUD_REACHABLE|netlink.NUD_PERMANENT) == 0
			delete(lost, c.neighbour)
			delete(k.asked, c.neighbour)
		}
	}
	if len(lost) == 0 {
		return
	}
	carried := k.carried()
	gone, all := map[bpfHop]int{}, 0 // before these changes
	for at, n := range k.known {
		if n.gone && !lost[at] {
			gone[bpfHop{Dev: at.dev, Mac: n.mac}]++
			all++
		}
	}
	for at, n := range k.known {
		hop := bpfHop{Dev: at.dev, Mac: n.mac}
		switch needed := carried[hop]; {
		case needed && lost[at] && !n.gone:
			k.ask(at, n)
		case needed && lost[at]:
			if _, unplugged := k.table.device(at.dev); unplugged {
				k.keep(at, n)
			}
			if !quota.Fair(gone[hop], 1, goneOfHop, all, goneMost) {
				delete(k.known, at)
				continue
			}
			gone[hop]++
			all++
		case !needed && n.gone:
			delete(k.known, at)
		}
	}
}

// listed takes all entries that the kernel has: changes were lost, also those of what it has forgotten.
func (k *keeper) listed(all []neighbourChange) {
	there := map[neighbour]bool{}
	for _, c := range all {
		there[c.neighbour] = true
	}
	for at, n := range k.known {
		if !n.gone && !there[at] {
			all = append(all, neighbourChange{neighbour: at, gone: true})
		}
	}
	k.hear(all)
}

// ask asks for the address of a neighbour, unless that was done a moment ago.
func (k *keeper) ask(at neighbour, n *known) {
	if _, asked := k.asked[at]; asked {
		return
	}
	k.asked[at] = time.Now().Add(answerTime)
	if err := k.table.ask(at, n.mac); err != nil {
		k.log.Debug("a neighbour is not asked for", "neighbour", at.ip, "err", err)
	}
}

// unanswered keeps the addresses of neighbours that have had their time to answer. It returns how long the next one has, or 0
// if there is none.
func (k *keeper) unanswered() (next time.Duration) {
	now := time.Now()
	for at, due := range k.asked {
		if left := due.Sub(now); left >= time.Millisecond {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		delete(k.asked, at)
		if n := k.known[at]; n != nil {
			k.keep(at, n)
		}
	}
	return next
}

func (k *keeper) keep(at neighbour, n *known) {
	name, _ := k.table.device(at.dev)
	log := k.log.With("neighbour", at.ip, "device", name)
	if err := k.table.keep(at, n.mac); err != nil {
		log.Warn("nothing answers at a neighbour, and its address is lost: programs whose connections use SMC-R by it stand still", "err", err)
		return
	}
	if !n.kept {
		log.Info("nothing answers at a neighbour: its address is kept for the programs whose connections go on over SMC-R")
	}
	n.kept = true
}
