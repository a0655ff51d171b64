// SPDX-License-Identifier: Apache-2.0

// Package topology makes a picture of what SMC stacks of a host have: the peers, the link
// groups, their links, the devices below, the state of each and the bytes that pass.
//
// [Read] asks the stacks, [Build] makes the model from what they answered, and the
// functions [Text], [DOT] and [SVG] draw it. All but Read are pure: the same model gives the
// same bytes. A picture is bounded: what is beyond [Limit] is counted and not drawn. State is
// never shown by colour alone. Names of other hosts, users and programs pass through
// package printable.
//
// What is about one form of output, such as the flags of smcr topology or the web page,
// does not belong here.
package topology
