package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// loggedIn returns a franz-go for each mechanism, over TLS. The file has the authority of the broker's certificate.
func loggedIn(broker, authority, user, password string) ([]subject, error) {
	pem, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", authority)
	}
	dial := kgo.DialTLSConfig(&tls.Config{RootCAs: trusted})
	login := scram.Auth{User: user, Pass: password}
	mechanisms := []sasl.Mechanism{
		plain.Auth{User: user, Pass: password}.AsMechanism(), login.AsSha256Mechanism(), login.AsSha512Mechanism(),
	}
	var subjects []subject
	for _, mechanism := range mechanisms {
		client := &franz{broker, []kgo.Opt{dial, kgo.SASL(mechanism)}}
		subjects = append(subjects, subject{"franz-go-" + mechanism.Name(), franzModule, client, nil})
	}
	return subjects, nil
}
