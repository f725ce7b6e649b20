import java.net.InetAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/** The REST catalogue of Apache Iceberg, over its JdbcCatalog: Rest DATABASE WAREHOUSE. Prints "ready", and its port on loopback. */
public final class Rest {
    public static void main(String[] arguments) throws Exception {
        var settings =
                Map.of(
                        "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                        "uri", "jdbc:sqlite:" + arguments[0],
                        "warehouse", arguments[1],
                        "jdbc.schema-version", "V1");
        var catalog = CatalogUtil.buildIcebergCatalog("rest", settings, new Configuration());
        var context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        var server = new Server();
        var connector = new ServerConnector(server);
        connector.setHost(InetAddress.getLoopbackAddress().getHostAddress());
        server.addConnector(connector);
        server.setHandler(context);
        server.start();
        System.out.println("ready\n" + connector.getLocalPort());
        server.join();
    }
}
