// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"testing"
)

func TestModes(t *testing.T) {
	for m, want := range map[Mode][2]bool{ModeR: {true, false}, ModeD: {false, true}, ModeNone: {}, ModeBoth: {true, true}} {
		if got := [2]bool{m.HasR(), m.HasD()}; got != want {
			t.Errorf("%v: R and D %v, want %v", m, got, want)
		}
	}
}

func TestDeleteRKeyFailed(t *testing.T) {
	m := DeleteRKey{Count: 8, ErrorMask: 0b01010000}
	for i := -1; i <= DeleteRKeyMax; i++ {
		if got, want := m.Failed(i), i == 1 || i == 3; got != want {
			t.Errorf("RKey %d: %v, want %v", i, got, want)
		}
	}
}

func TestStrings(t *testing.T) {
	for want, v := range map[string]fmt.Stringer{
		"DECLINE":               TypeDecline,
		"CLC type 9":            CLCType(9),
		"ADD LINK CONTINUATION": LLCAddLinkCont,
		"LLC opcode 0x21":       LLCType(0x21),
		"SMC-R and SMC-D":       ModeBoth,
		"lost path":             DeleteLinkLostPath,
		"reason 0x12345678":     DeleteLinkReason(0x12345678),
		"no alternate path":     AddLinkNoAlternatePath,
		"DELETE RKEY":           LLCDeleteRKey,
		"none":                  ModeNone,
		"invalid MTU":           AddLinkInvalidMTU,
		"unknown link group":    DeleteLinkUnknownGroup,

		"PROPOSAL": TypeProposal, "ACCEPT": TypeAccept, "CONFIRM": TypeConfirm,
		"SMC-R": ModeR, "SMC-D": ModeD, "mode 9": Mode(9),
		"CONFIRM LINK": LLCConfirmLink, "ADD LINK": LLCAddLink, "DELETE LINK": LLCDeleteLink,
		"REQUEST ADD LINK": LLCReqAddLink, "CONFIRM RKEY": LLCConfirmRKey, "TEST LINK": LLCTestLink,
		"CONFIRM RKEY CONTINUATION": LLCConfirmRKeyCont,
		"version 1":                 LLCV1, "version 2": LLCV2, "version 2, little-endian": LLCV2Little, "LLC layout 9": LLCLayout(9),
		"reason 9":                         AddLinkReason(9),
		"operator initiated termination":   DeleteLinkOperator,
		"program initiated termination":    DeleteLinkProgram,
		"LLC protocol violation":           DeleteLinkProtocolViolation,
		"asymmetric link no longer needed": DeleteLinkAsymmetric,
		"unknown link":                     DeleteLinkUnknownLink,
	} {
		if got := v.String(); got != want {
			t.Errorf("%T: %q, want %q", v, got, want)
		}
	}
}
