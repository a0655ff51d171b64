// SPDX-License-Identifier: Apache-2.0

// Package page is a web page that shows what SMC stacks do: the picture of package
// topology, and tables of links, connections and fallbacks. The page asks for a new state
// every two seconds while somebody looks at it.
//
// [New] returns the handler; the listener is the caller's. All viewers share one listing of
// the stacks. Whoever reaches the address can see the page, so it has only what every user of
// the host may see: no processes, no alert tokens, no peer IDs, no queue pair numbers
// (docs/security.md). It changes nothing. HTML, CSS and JavaScript are in the folder site,
// are part of the program and load nothing from elsewhere.
package page
