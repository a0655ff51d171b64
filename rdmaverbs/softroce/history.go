// SPDX-License-Identifier: Apache-2.0

package softroce

// history tells which of the requests that a responder has executed the peer may still
// send again. It counts PSNs back from the expected one.
//
// By the InfiniBand specification (volume 1, section 9.7.5), the half of all PSNs that is
// before the expected one are duplicates, which the responder acknowledges again. But a
// peer sends a request again only if the answer did not arrive. So a packet is a
// duplicate only if its PSN was executed, and if not more than historyAnswers answers
// were sent since then: a peer that has lost all of them has no more requests outstanding
// than its send queue can hold. Other packets with an old PSN are not from the peer.
type history struct {
	recent  int // PSNs since the last historyAnswers answers began
	before  int // PSNs of the historyAnswers answers before these
	answers int // answers within recent
}

// historyAnswers is the largest number of answers that a peer can wait for: as many as
// the longest send queue of common adapters has work requests.
const historyAnswers = 1 << 15

// executed is called after n PSNs were executed.
func (h *history) executed(n int) { h.recent = min(h.recent+n, psnHalf) }

// answered is called for each answer that acknowledges more than the one before.
func (h *history) answered() {
	if h.answers++; h.answers == historyAnswers {
		*h = history{before: h.recent}
	}
}

// has reports whether the PSN that is d before the expected one may be sent again.
func (h *history) has(d int) bool { return d <= h.recent+h.before }
