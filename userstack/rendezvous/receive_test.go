// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// after is a machine after a script.
func after(t *testing.T, who, events string) *script {
	t.Helper()
	s := newScript(t, who, func(*table, State, EventKind, State) {})
	for ev := range strings.SplitSeq(events, "; ") {
		s.happens(t, ev)
	}
	return s
}

// TestRest: a driver that reads as many bytes as Rest says has the whole message, and none
// of what follows on the TCP connection: that is data, or the other side's DECLINE.
func TestRest(t *testing.T) {
	for name, ev := range testEvents {
		m, ok := ev.(wire.CLC)
		if !ok {
			continue
		}
		raw, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		for n := range raw {
			if got := Rest(raw[:n]); got < 1 || got > len(raw)-n {
				t.Fatalf("%s: %d bytes of %d have come, and Rest says %d", name, n, len(raw), got)
			}
		}
		if got := Rest(raw); got != 0 {
			t.Errorf("%s: Rest says %d after the whole message", name, got)
		}
	}
	if got := Rest([]byte("GET / HTTP")); got != 0 {
		t.Errorf("Rest says %d of what is no CLC message", got)
	}
}

// TestByteByByte: TCP may deliver a message in any pieces.
func TestByteByByte(t *testing.T) {
	s := after(t, "server", "Prepared")
	raw, err := testProposal(true, withV2).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		if s.m.State() != AwaitProposal || s.m.Want() < 1 || s.m.Want() > len(raw)-i {
			t.Fatalf("after %d bytes of %d: state %s, wants %d", i, len(raw), s.m.State(), s.m.Want())
		}
		s.m.Handle(s.now, Received{raw[i : i+1]})
	}
	if s.m.State() != Admitting {
		t.Errorf("state %s after PROPOSAL", s.m.State())
	}
}

// TestMoreThanWanted: a driver must not hand in what is behind a message.
func TestMoreThanWanted(t *testing.T) {
	s := after(t, "client", toAccept)
	raw, err := wire.Decline{PeerID: testPeer, Diagnosis: smc.DiagMem}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.m.Handle(s.now, Received{append(raw, 'x')})
	if err := s.m.Outcome().Err; !errors.Is(err, errInternal) {
		t.Errorf("outcome %v, want %v", err, errInternal)
	}
}

// TestWantsNothing: the machine takes nothing from TCP where what comes is not its own, and
// nothing after the end of the stream.
func TestWantsNothing(t *testing.T) {
	for _, tt := range []struct {
		who, events string
		want        int
	}{
		{"client", "Prepared; Surveyed", 0},
		{"client", toAccept, wire.HeaderLen},
		{"client", toAccept + "; half", wire.HeaderLen - 4},
		{"client", toAccept + "; ACCEPT; Joined", 0},
		{"server", serverLink, wire.HeaderLen},
		{"server", serverLink + "; EOF", 0},
		{"server", serverLink + "; LLCDone", 0},
	} {
		if got := after(t, tt.who, tt.events).m.Want(); got != tt.want {
			t.Errorf("%s: %s: wants %d bytes, want %d", tt.who, tt.events, got, tt.want)
		}
	}
}

// TestCauses: the outcome has the cause, which a program can test for, and the message that
// was waited for.
func TestCauses(t *testing.T) {
	for _, tt := range []struct {
		who, events string
		is          error
		text        string
	}{
		{"client", "Failed", errTest, ""},
		{"client", toAccept + "; EOF", io.EOF, "CLC header"},
		{"client", toAccept + "; ReadFailed", errTest, "CLC header"},
		{"client", toAccept + "; half; EOF", io.ErrUnexpectedEOF, "CLC header"},
		{"client", toAccept + "; half; ReadFailed", errTest, "CLC header"},
		{"client", toAccept + "; half a DECLINE; EOF", io.ErrUnexpectedEOF, "DECLINE"},
		{"client", toAccept + "; half a DECLINE; +6s; +50ms", os.ErrDeadlineExceeded, "DECLINE"},
		{"client", toAccept + "; +6s; +50ms", os.ErrDeadlineExceeded, "CLC header"},
		{"server, held", toAdmit + "; Failed; Sent; +6s; TCPState, unacked", os.ErrDeadlineExceeded, "DECLINE"},
		{"client", toAccept + "; data", ErrProtocol, "not send a CLC message"},
		{"client", "Prepared; Surveyed; SendFailed", errTest, ""},
		{"client", toAccept + "; Canceled", errTest, ""},
		{"client", toAccept + "; Closed", errTest, ""},
		{"server", toConfirm + "; Canceled; CONFIRM", ErrTooLate, errTest.Error()},
		{"server", toConfirm + "; CONFIRM; Failed", ErrTooLate, errTest.Error()},
	} {
		err := after(t, tt.who, tt.events).m.Outcome().Err
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %s: %v, want %v with %q", tt.who, tt.events, err, tt.is, tt.text)
		}
	}
}

// TestBrokenMessage: a message whose header is right and whose rest is not is no CLC message.
func TestBrokenMessage(t *testing.T) {
	s := after(t, "client", toAccept)
	raw, err := wire.Accept{Endpoint: testEndpoint()}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] ^= 1 // the trailer
	s.feed(raw)
	if err := s.m.Outcome().Err; !errors.Is(err, ErrProtocol) || !errors.Is(err, wire.ErrEyecatcher) {
		t.Errorf("outcome %v, want %v and %v", err, ErrProtocol, wire.ErrEyecatcher)
	}
}

// TestRefusalIsError: a refusal names its diagnosis and its cause, and one without a cause of
// its own is the cause of the outcome.
func TestRefusalIsError(t *testing.T) {
	r := &Refusal{Code: smc.DiagNoRoute, Err: errTest}
	if got, want := r.Error(), smc.DiagNoRoute.String()+": "+errTest.Error(); got != want || !errors.Is(r, errTest) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (&Refusal{Code: smc.DiagNoRoute}).Error(); got != smc.DiagNoRoute.String() {
		t.Errorf("%q, want %q", got, smc.DiagNoRoute)
	}
	s := newScript(t, "client", func(*table, State, EventKind, State) {})
	s.m.Handle(s.now, Failed{Failure{Why: Refusal{Code: smc.DiagNoRoute}}})
	var why *Refusal
	if err := s.m.Outcome().Err; !errors.As(err, &why) || why.Code != smc.DiagNoRoute {
		t.Errorf("outcome %v, want a refusal with %s", err, smc.DiagNoRoute)
	}
	s = after(t, "server", serverLink+"; ReadFailed; Sent; TCPState, data")
	if no := s.m.Outcome().Refused; !errors.Is(no, errTest) {
		t.Errorf("refused %v, want the error of the read", no)
	}
	s = after(t, "client", toAccept+"; ACCEPT; NoGroup; Sent")
	if no := s.m.Outcome().Refused; no.Err == nil {
		t.Error("link group out of sync, and no cause says which")
	}
}

// TestNames: logs and errors name each state and each event, and do not fail for others.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for s := range numStates {
		seen[s.String()] = true
	}
	for k := range numEvents {
		seen[k.String()] = true
	}
	if want := int(numStates) + int(numEvents); len(seen) != want || seen[""] {
		t.Errorf("%d names, want %d", len(seen), want)
	}
	if (numEvents-1).String() != "closed" || (numStates-1).String() != "Over" {
		t.Errorf("the last ones are %s and %s", numEvents-1, numStates-1)
	}
	if seen[numEvents.String()] || seen[numStates.String()] {
		t.Errorf("%s, %s: these do not exist", numEvents, numStates)
	}
}
