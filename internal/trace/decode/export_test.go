// SPDX-License-Identifier: Apache-2.0

package decode

// Sizes returns how many entries the tables have, and the most connections of one token.
func (d *Decoder) Sizes() (flows, tokens, longest int) {
	for _, uses := range d.tokens.m {
		longest = max(longest, len(uses))
	}
	return len(d.flows.m), len(d.tokens.m), longest
}
