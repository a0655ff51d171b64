// SPDX-License-Identifier: Apache-2.0

package reasons

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"smcr/smc"
)

// A Reason is why a connection is TCP.
type Reason struct {
	// Name is stable. It has lower case letters and digits, and words joined by "-".
	Name string
	// Code is the number of the reason in DECLINE and in listings, or 0 if it has none.
	Code smc.Diagnosis
	// Text is a few words. Programs print it, perhaps with more words around it.
	Text string
	// Title says the same where Text does not stand alone, as a part of a sentence. Empty: it does.
	Title string
	// Also are other texts for the same.
	Also []string
	// Cause is what has happened, in one or more sentences.
	Cause string
	// Cure is what to do, one sentence for each step. Commands are in single quotes.
	Cure []string
}

// Number returns the code in hexadecimal, or "" if the reason has none.
func (r *Reason) Number() string {
	if r.Code == 0 {
		return ""
	}
	return fmt.Sprintf("0x%08x", uint32(r.Code))
}

// Heading returns the reason in a few words that stand alone.
func (r *Reason) Heading() string { return cmp.Or(r.Title, r.Text) }

// Hint returns the words that lead to the entry: "see 'smcr explain NAME'".
func (r *Reason) Hint() string { return "see 'smcr explain " + r.Name + "'" }

// in returns where the last of the texts of the reason in a text in lower case ends, and its
// length, both in bytes. The end is 0 if none is there.
func (r *Reason) in(text string) (end, length int) {
	for _, t := range append([]string{r.Text}, r.Also...) {
		t = strings.ToLower(t)
		if i := strings.LastIndex(text, t); i >= 0 && (i+len(t) > end || i+len(t) == end && len(t) > length) {
			end, length = i+len(t), len(t)
		}
	}
	return end, length
}

// All returns the reasons: those with a code by code, then the others by name.
func All() []Reason { return slices.Concat(codes, found) }

// Of returns the reason with a code. It reports whether there is one.
func Of(code smc.Diagnosis) (Reason, bool) {
	i := slices.IndexFunc(codes, func(r Reason) bool { return r.Code == code })
	if code == 0 || i < 0 {
		return Reason{}, false
	}
	return codes[i], true
}

// Named returns the reason with a name, which may be that of [Label]. It reports whether
// there is one.
func Named(name string) (Reason, bool) {
	all := All()
	i := slices.IndexFunc(all, func(r Reason) bool { return r.Name == name || r.Code != 0 && Label(r.Code) == name })
	if i < 0 {
		return Reason{}, false
	}
	return all[i], true
}

// Name returns the name of the reason with a code, or "".
func Name(code smc.Diagnosis) string {
	r, _ := Of(code)
	return r.Name
}

// In returns the reason that a message of smcr gives, such as a line of 'smcr run -v'. A
// reason without a code says more than the code beside it. It reports whether there is one.
func In(message string) (Reason, bool) {
	text := strings.ToLower(message)
	if r, ok := last(found, text); ok {
		return r, true
	}
	// The last code is that of the peer, if there are two.
	for i := strings.LastIndex(text, "0x"); i >= 0; i = strings.LastIndex(text[:i], "0x") {
		if len(text) < i+10 {
			continue
		}
		if n, err := strconv.ParseUint(text[i+2:i+10], 16, 32); err == nil {
			if r, ok := Of(smc.Diagnosis(n)); ok {
				return r, true
			}
		}
	}
	return last(codes, text)
}

// last returns the reason whose text comes last in a message: an error begins with what
// failed and ends with the cause. Of two that end at the same place, the longer one counts.
func last(list []Reason, text string) (best Reason, ok bool) {
	end, length := 0, 0
	for i := range list {
		if e, n := list[i].in(text); e > end || e == end && n > length {
			best, end, length = list[i], e, n
		}
	}
	return best, end > 0
}

// Find returns the reasons that a user may mean: with a code, in hexadecimal with or without
// "0x", with a name, also that in metrics, with a part of a name or a text, or in a whole message.
func Find(what string) []Reason {
	word := strings.ToLower(strings.TrimSpace(what))
	if word == "" {
		return nil
	}
	if r, ok := Named(word); ok {
		return []Reason{r}
	}
	if code, ok := parseCode(word); ok {
		if r, ok := Of(code); ok {
			return []Reason{r}
		}
		return nil
	}
	hits := All()
	hits = slices.DeleteFunc(hits, func(r Reason) bool {
		texts := append([]string{r.Name, strings.ReplaceAll(r.Name, "-", " "), r.Text, r.Title}, r.Also...)
		return !slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(strings.ToLower(t), word) })
	})
	if len(hits) > 0 {
		return hits
	}
	if r, ok := In(what); ok {
		return []Reason{r}
	}
	return nil
}

// parseCode reads a code: 8 hexadecimal digits, or any number of them after "0x".
func parseCode(word string) (smc.Diagnosis, bool) {
	digits, prefixed := strings.CutPrefix(word, "0x")
	n, err := strconv.ParseUint(digits, 16, 32)
	return smc.Diagnosis(n), err == nil && (prefixed || len(word) == 8)
}
