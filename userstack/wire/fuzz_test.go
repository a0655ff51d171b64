// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding"
	"path/filepath"
	"testing"
)

// fuzz checks that a parser survives any input, and that what it takes can be
// encoded again, to the same length and the same meaning. Messages of version 2
// may lose bytes behind what is known of them.
func fuzz(f *testing.F, seeds string, parse func([]byte) (encoding.BinaryAppender, error)) {
	files, err := filepath.Glob("testdata/*/" + seeds + ".hex")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds %s: %v", seeds, err)
	}
	for _, file := range files {
		f.Add(readHex(f, file))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		orig := bytes.Clone(in)
		m, err := parse(in)
		if !bytes.Equal(in, orig) {
			t.Fatal("the parser wrote to its input")
		}
		if err != nil {
			return
		}
		out, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatalf("%+v was parsed but cannot be encoded: %v", m, err)
		}
		if len(out) > len(in) || len(out) < len(in) && !growing(in) {
			t.Fatalf("%+v: %d bytes parsed, %d encoded", m, len(in), len(out))
		}
		again, err := parse(out)
		if err != nil {
			t.Fatalf("%+v was encoded but cannot be parsed: %v", m, err)
		}
		if d := diff(m, again); d != "" {
			t.Fatalf("parsed again (-first +second):\n%s", d)
		}
	})
}

// growing reports whether b is of a kind that may have bytes behind its end.
func growing(b []byte) bool {
	if h, err := ParseHeader(b); err == nil {
		return h.Version == Version2 && (h.Type == TypeAccept || h.Type == TypeConfirm)
	}
	h, err := ParseLLCHeader(b)
	return err == nil && h.Layout.V2()
}

func FuzzProposal(f *testing.F)    { fuzz(f, "clc_proposal.*", boxed(ParseProposal)) }
func FuzzAccept(f *testing.F)      { fuzz(f, "clc_accept.*", boxed(ParseAccept)) }
func FuzzConfirm(f *testing.F)     { fuzz(f, "clc_confirm.*", boxed(ParseConfirm)) }
func FuzzAcceptV2(f *testing.F)    { fuzz(f, "clc_accept_v2.*", boxed(ParseAcceptV2)) }
func FuzzConfirmV2(f *testing.F)   { fuzz(f, "clc_confirm_v2.*", boxed(ParseConfirmV2)) }
func FuzzDecline(f *testing.F)     { fuzz(f, "clc_decline.*", boxed(ParseDecline)) }
func FuzzCLC(f *testing.F)         { fuzz(f, "*clc_*", boxed(ParseCLC)) }
func FuzzConfirmLink(f *testing.F) { fuzz(f, "llc*_confirm_link.*", boxed(ParseConfirmLink)) }
func FuzzAddLink(f *testing.F)     { fuzz(f, "llc*_add_link.*", boxed(ParseAddLink)) }
func FuzzAddLinkCont(f *testing.F) { fuzz(f, "llc_add_link_cont.*", boxed(ParseAddLinkCont)) }
func FuzzDeleteLink(f *testing.F)  { fuzz(f, "llc*_delete_link.*", boxed(ParseDeleteLink)) }
func FuzzConfirmRKey(f *testing.F) { fuzz(f, "llc*_confirm_rkey.*", boxed(ParseConfirmRKey)) }
func FuzzConfirmRKeyCont(f *testing.F) {
	fuzz(f, "llc_confirm_rkey_cont.*", boxed(ParseConfirmRKeyCont))
}
func FuzzDeleteRKey(f *testing.F)   { fuzz(f, "llc_delete_rkey.*", boxed(ParseDeleteRKey)) }
func FuzzDeleteRKeyV2(f *testing.F) { fuzz(f, "llc2_delete_rkey.*", boxed(ParseDeleteRKeyV2)) }
func FuzzReqAddLink(f *testing.F)   { fuzz(f, "llc2_req_add_link.*", boxed(ParseReqAddLink)) }
func FuzzTestLink(f *testing.F)     { fuzz(f, "llc*_test_link.*", boxed(ParseTestLink)) }
func FuzzLLC(f *testing.F)          { fuzz(f, "llc*", boxed(ParseLLC)) }
func FuzzCDC(f *testing.F)          { fuzz(f, "cdc.*", boxed(ParseCDC)) }

// offered is a proposal with its offer. The areas that Proposal keeps unread
// are made anew out of the offer, but for what SMC-D version 1 has in them.
type offered struct {
	Proposal
	Offer Offer
}

func parseOffered(b []byte) (offered, error) {
	p, err := ParseProposal(b)
	if err != nil {
		return offered{}, err
	}
	o, err := p.Offer()
	if err != nil {
		return offered{}, err
	}
	p.Growth, p.Extension = p.Growth[:growthV2OffsetAt], nil
	return offered{p, o}, nil
}

// whole is the proposal as ParseProposal gives it.
func (o offered) whole() (Proposal, error) { return o.WithOffer(o.Offer) }

func (o offered) AppendBinary(b []byte) ([]byte, error) {
	p, err := o.whole()
	if err != nil {
		return b, err
	}
	return p.AppendBinary(b)
}

func FuzzOffer(f *testing.F) { fuzz(f, "clc_proposal.*", boxed(parseOffered)) }

// FuzzHeader: a header that is taken bounds the message, and no parser takes
// what the header refuses.
func FuzzHeader(f *testing.F) {
	for _, file := range messageFiles(f) {
		f.Add(readHex(f, file))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := ParseHeader(in)
		if err == nil && (h.Length < MinCLCLen || h.Length > MaxCLCLen || h.Version == 0) {
			t.Fatalf("%+v", h)
		}
		if m, perr := ParseCLC(in); perr == nil && (err != nil || h.Length != len(in)) {
			t.Fatalf("%+v parsed from %d bytes, header %+v, %v", m, len(in), h, err)
		}
	})
}

// FuzzTCPOptions: the option is never found where its bytes are not.
func FuzzTCPOptions(f *testing.F) {
	files, _ := filepath.Glob("testdata/captures/tcp_option.*.hex")
	for _, file := range files {
		f.Add(readHex(f, file))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if HasTCPOption(in) && !bytes.Contains(in, AppendTCPOption(nil)) {
			t.Fatalf("found in %x", in)
		}
	})
}
