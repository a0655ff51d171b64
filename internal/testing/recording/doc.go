// SPDX-License-Identifier: Apache-2.0

// Command recording runs a command and draws what it prints, as an SVG that shows the lines
// at the times at which they came:
//
//	go run ./internal/testing/recording -title 'make demo' -o docs/demo.svg -- COMMAND ...
//
// `make recording` draws docs/demo.svg, the recording in the README, with it.
//
// The file needs no script and nothing from elsewhere, so a browser shows it as a picture in
// a page. Two animations of CSS do it: one uncovers the lines, the other scrolls. Where
// animations are off, the last lines are there. Control characters are not drawn.
package main
