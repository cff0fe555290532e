package orders

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// serviceURL is the address of the broker that all tests share, httpURL that of its controls.
var serviceURL, httpURL string

// lifeline is the broker's standard input, at whose end it stops: with the process of the tests.
var lifeline io.WriteCloser

// TestMain runs the tests beside a broker in a process of its own: it starts in a fraction of a
// second, on a free port, and keeps its messages in memory.
func TestMain(m *testing.M) {
	if err := startBroker(); err != nil {
		fmt.Fprintln(os.Stderr, "the broker did not start:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func startBroker() error {
	program := os.Getenv("PULSEMARK") // where pulsemark is installed, if not on the PATH
	if program == "" {
		program = "pulsemark"
	}
	broker := exec.Command(program, "standalone", "--storage", "memory", "--port", "0", "--http-port", "0", "--json", "--test-controls", "--exit-on-stdin-close")
	broker.Stderr = os.Stderr
	output, err := broker.StdoutPipe()
	if err == nil {
		lifeline, err = broker.StdinPipe()
	}
	if err == nil {
		err = broker.Start()
	}
	if err != nil {
		return err
	}
	// The broker writes one line when it serves.
	line, err := bufio.NewReader(output).ReadBytes('\n')
	var ready struct {
		ServiceURL string `json:"service_url"`
		HTTPURL    string `json:"http_url"`
	}
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	serviceURL, httpURL = ready.ServiceURL, ready.HTTPURL
	return err
}

// control makes a request to the broker's test controls, and returns the answer.
func control(t *testing.T, method, path, body string) string {
	t.Helper()
	request, err := http.NewRequest(method, httpURL+"/pulsemark/test/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s", method, path, response.Status, answer)
	}
	return string(answer)
}
