// SPDX-License-Identifier: Apache-2.0

package printable

import "strings"

// Lines returns the text of an error, with the errors that are joined in it apart. What an error
// says before and after them stays with the first and the last one.
func Lines(err error) []string {
	text := err.Error()
	if !strings.Contains(text, "\n") {
		return []string{text}
	}
	switch e := err.(type) { //nolint:errorlint // each error of the tree in turn
	case interface{ Lines() []string }:
		return e.Lines()
	case interface{ Unwrap() []error }:
		var all, texts []string
		for _, x := range e.Unwrap() {
			all, texts = append(all, Lines(x)...), append(texts, x.Error())
		}
		if text == strings.Join(texts, "\n") {
			return all
		}
		for _, x := range e.Unwrap() {
			if all := around(text, x); all != nil {
				return all
			}
		}
	case interface{ Unwrap() error }:
		if x := e.Unwrap(); x != nil {
			if all := around(text, x); all != nil {
				return all
			}
		}
	}
	return []string{text}
}

// around returns the lines of err with the text around it, or nil if the text does not have it, or
// if it is one line.
func around(text string, err error) []string {
	before, after, ok := strings.Cut(text, err.Error())
	all := Lines(err)
	if !ok || len(all) < 2 {
		return nil
	}
	all[0], all[len(all)-1] = before+all[0], all[len(all)-1]+after
	return all
}
